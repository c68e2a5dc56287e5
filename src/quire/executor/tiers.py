"""Opens a worker's tiers below the KV cache."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quire.core.batch import AT_PEER
from quire.core.config import EngineConfig
from quire.core.errors import ConfigError
from quire.executor.joining import cluster_key
from quire.kv.lower_tiers import BlockFolder, LowerTier, PromisedBlocks
from quire.models.weights.digest import kv_digest, kv_facts

if TYPE_CHECKING:
    from quire.ops.interface import Ops
    from quire.runner.kv_host import HostKV
    from quire.runner.kv_peer import BlockServer
    from quire.runner.runner import ModelRunner


class Tiers(NamedTuple):
    """A worker's tiers: the copies, what the scheduler searches, and a producer's server."""

    host: HostKV | None = None
    lower: tuple[LowerTier, ...] = ()
    server: BlockServer | None = None

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        if self.host is not None:
            self.host.close()


def open_tiers(config: EngineConfig, runner: ModelRunner, ops: Ops) -> Tiers:
    """Open host memory, files, and the other end of a hand-off, as far as they are on.

    Raises:
        ConfigError: files cannot be written, the port is in use, or the producer refuses.
    """
    from quire.runner.kv_host import open_host_tier

    if not config.tiers.enabled:
        return Tiers()
    lower: list[LowerTier] = []
    folder, facts = None, dict[str, str]()
    if config.tiers.directory is not None:
        facts = kv_facts(config, ops.isa, ops.sources)
        folder = BlockFolder(Path(config.tiers.directory).expanduser(), kv_digest(facts))
        lower.append(folder)
    host = open_host_tier(config, runner.kv_caches, runner.layer_states, folder)
    transfer = config.transfer
    if transfer is None or transfer.address is None or host is None:
        return Tiers(host, tuple(lower))
    from quire.runner import kv_peer

    peer = kv_peer.Peer(transfer.address, cluster_key(), facts)
    if not transfer.produces:
        blocks = kv_peer.PeerBlocks(peer)
        blocks.check()
        host.add_source(AT_PEER, blocks)
        if host.states is not None:
            host.states.add_source(AT_PEER, kv_peer.PeerBlocks(peer, kv_peer.STATE))
        return Tiers(host, (*lower, PromisedBlocks()))
    files = {kv_peer.BLOCK: host.files, kv_peer.STATE: host.states and host.states.files}
    try:
        server = kv_peer.BlockServer(peer, {kind: f for kind, f in files.items() if f})
    except OSError as error:
        raise ConfigError(
            f"KV blocks cannot be served at {peer.address[0]}:{peer.address[1]}: {error}.",
            fix="Set another kv_ip or kv_port.",
            param="kv_transfer_config",
        ) from error
    return Tiers(host, tuple(lower), server)
