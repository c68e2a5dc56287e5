"""Imports of the core's process before it has its configuration."""

from __future__ import annotations

from quire.system import env
from quire.system.garbage import no_collection


@no_collection()
def begin_imports() -> None:
    """Import what `load_core` imports when it is imported; the rest follows with the model."""
    import quire.engine.core
    import quire.executor.choice  # noqa: F401


@no_collection()
def import_all() -> None:
    """Import what `load_core` imports, including its imports while it loads a model."""
    env.let_idle_threads_sleep()
    import quire.engine.core
    import quire.executor.choice
    import quire.models.weights.loader
    import quire.ops.cpu
    import quire.ops.providers
    import quire.profile.profiling
    import quire.runner.kv_host
    import quire.runner.runner
    import quire.sampling.grammars  # noqa: F401
