"""Imports of the core's process before it has its configuration."""

from __future__ import annotations

import threading

from quire.system import env, torch_library
from quire.system.garbage import no_collection


def begin_imports() -> None:
    """Import what `load_core` imports, and start importing torch, which takes most of a start.

    One thread imports all of torch: two threads could see half-imported modules. Torch's library is
    loaded after numpy's (see `load_ahead`).
    """
    import numpy as np  # noqa: F401

    threading.Thread(target=_import_torch, name="import-torch").start()
    import quire.engine.core
    import quire.executor.multiproc  # noqa: F401


@no_collection()
def _import_torch() -> None:
    env.let_idle_threads_sleep()
    torch_library.load()
    import quire.ops.torch_arrays  # noqa: F401


@no_collection()
def import_all() -> None:
    """Import what `load_core` imports, including its imports while it loads a model."""
    env.let_idle_threads_sleep()
    import quire.engine.core
    import quire.executor.multiproc
    import quire.models.loader
    import quire.ops.cpu
    import quire.profile.profiling
    import quire.runner.runner
    import quire.sampling.grammars  # noqa: F401
