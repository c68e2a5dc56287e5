"""The first part of an engine's start: the configuration, with which the core loads its model.

It imports little, so that the core need not wait for the front end's imports.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from quire.core.log import setup_logging
from quire.frontend.client.core_client import ProcessClient
from quire.frontend.client.core_process import core_command
from quire.frontend.client.interface import CoreClient
from quire.frontend.client.replica_configs import replica_configs, shared_memory
from quire.parallel.shared_memory import SharedFile
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import Resolved, resolve
from quire.system.hardware import detect

if TYPE_CHECKING:
    from quire.frontend.far.gate import Gate


class Configured(NamedTuple):
    """A core that loads its model, its configuration, and the times of resolving that.

    Attributes:
        memory: see `Fleet`; so is `gate`.
    """

    core: CoreClient
    memory: SharedFile | None
    resolved: Resolved
    began: float
    resolved_at: float
    gate: Gate | None = None


def configure(args: EngineArgs, core: CoreClient | None = None) -> Configured:
    """Resolve the arguments and let the core load its model. Shuts the core down if that fails.

    Args:
        core: None for one in a process that begins here.

    Raises:
        QuireError: the arguments or the model's files are wrong.
    """
    began, gate, far = time.monotonic(), None, args.far_replicas
    core = core or ProcessClient.begun(core_command(args))
    try:
        setup_logging()
        resolved = resolve(args, detect())
        memory = shared_memory(resolved.config, len(args.replicas))
        if far:
            from quire.frontend.far.gate import Gate

            gate = Gate((args.data_parallel_address, args.data_parallel_rpc_port), far)
            if 0 in far:  # no core is here
                core.shutdown()
                core = gate.connect(0)
                core.begin()
        core.configure(replica_configs(resolved.config, args.replicas, memory, far)[0])
    except BaseException:
        core.shutdown()
        if gate is not None:
            gate.close()
        raise
    return Configured(core, memory, resolved, began, time.monotonic(), gate)
