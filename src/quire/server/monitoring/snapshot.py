"""The dashboard's state of an engine at one moment; `feed` sends one per second."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from quire import __version__
from quire.core.config import EngineConfig
from quire.frontend.output.timeline import Lane, Timelines
from quire.kv.snapshot_types import BlockMap, KVSnapshot, PrefixTree
from quire.metrics.histogram import Percentiles
from quire.metrics.stats import EngineStats
from quire.profile.device_reading import Device, DeviceReading
from quire.profile.devices import devices
from quire.server.state import ServerState

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

BlockKind = Literal["free", "cached", "owned", "shared"]

MAX_LANES = 200
LANE_SECONDS = 60.0
"""Seconds that an ended request keeps its lane."""
PATIENCE = 0.5
"""Seconds that a snapshot waits for the core, which answers between two steps."""
_KINDS: tuple[BlockKind, ...] = ("free", "cached", "owned", "shared")


class Totals(msgspec.Struct):
    """State and counters since the start, under the names of `SchedulerStats` and `EngineStats`.

    They are the numbers of `/metrics`.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    kv_blocks_cached: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    step_tokens: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    rejected: int = 0
    finished: dict[str, int] = {}
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class KVMap(msgspec.Struct):
    """The KV blocks in order, as runs of equal ones: kind, owner, number of blocks."""

    num_blocks: int
    blocks_per_cell: int
    """Blocks per entry; above 1, an entry shows what most of them are."""
    runs: list[tuple[BlockKind, int, int]]
    owners: list[str]
    """Ids of lanes; a run's owner is an index of it, or -1."""


class PrefixNode(msgspec.Struct):
    """A run of blocks without a branch inside."""

    id: int
    parent: int | None
    """The nearest listed node above it."""
    tokens: int
    blocks: int
    users: int
    """Requests that hold its first block."""


class PrefixNodes(msgspec.Struct):
    num_nodes: int
    """The number of nodes in the tree; only the largest are listed."""
    nodes: list[PrefixNode]


class Stage(msgspec.Struct):
    """A pipeline stage, with the counters of `messages.StageStats`; of all replicas together."""

    node: int
    layers: int
    busy: float
    hop_seconds: float
    hop_bytes: int
    hops: int


class Snapshot(msgspec.Struct):
    """One event of the stream."""

    now: float
    """Seconds on the machine's monotonic clock, as all moments in it."""
    wall: float
    """The same moment in seconds since the epoch."""
    model: str
    version: str
    max_model_len: int
    max_num_seqs: int
    stats: Totals
    seconds: dict[str, float]
    """Seconds since the start by part, with the names of `metrics.times.PARTS`."""
    latency: dict[str, Percentiles]
    """Seconds, over the last minute: ttft, itl, e2e, queue (see `metrics.histogram`)."""
    kv_map: KVMap
    lanes: list[Lane]
    prefix_tree: PrefixNodes
    devices: list[DeviceReading]
    stages: list[Stage]
    """Empty for one stage."""


def totals(stats: EngineStats) -> Totals:
    """Return the counters of `stats`, of its scheduler and of that one's drafts."""
    scheduler = stats.scheduler
    found = Totals()
    for source in (stats, scheduler, scheduler.spec_decoding if scheduler else None):
        for name in Totals.__struct_fields__:
            if hasattr(source, name):
                setattr(found, name, getattr(source, name))
    found.finished = dict(stats.finished)
    return found


def stages(stats: EngineStats, config: EngineConfig) -> list[Stage]:
    """Return the pipeline's stages; [] for one."""
    found = stats.scheduler.stages if stats.scheduler else []
    per_node = len(found) // config.cluster.nnodes
    return [
        Stage(number // per_node, layers, *msgspec.structs.astuple(stage))
        for number, (stage, layers) in enumerate(zip(found, config.stage_layers, strict=False))
    ]


def kv_map(found: BlockMap, timelines: Timelines) -> KVMap:
    """Return the map with the owners' names, which are those of their lanes."""
    kinds = [_KINDS[kind] for kind in found.kind]
    runs = list(zip(kinds, found.owner, found.count, strict=True))
    owners = [timelines.name(core_id) for core_id in found.owners]
    return KVMap(found.num_blocks, found.blocks_per_cell, runs, owners)


def prefix_nodes(found: PrefixTree) -> PrefixNodes:
    columns = zip(found.id, found.parent, found.blocks, found.users, strict=True)
    return PrefixNodes(
        found.num_nodes,
        [
            PrefixNode(node, None if parent < 0 else parent, blocks * found.block_size, blocks, n)
            for node, parent, blocks, n in columns
        ],
    )


class Camera:
    """Takes snapshots of a served model.

    The KV cache's part comes from the core. While a step takes longer than `PATIENCE`, the previous
    part is sent again, so the stream continues.
    """

    def __init__(self, server: ServerState) -> None:
        self._server = server
        self._kv_map = KVMap(0, 1, [], [])
        self._prefix_nodes = PrefixNodes(0, [])
        self._asked: asyncio.Task[Any] | None = None
        self._devices: list[Device] | None = None

    async def take(self) -> Snapshot:
        """Return the present state of the engine.

        Raises:
            EngineDeadError: it has died.
        """
        engine = self._server.live_engine()
        await self._ask(engine)
        now = time.monotonic()
        return Snapshot(
            now=now,
            wall=time.time(),
            model=self._server.model_names[0],
            version=__version__,
            max_model_len=engine.max_model_len,
            max_num_seqs=engine.max_num_seqs,
            stats=totals(engine.stats),
            seconds=engine.stats.seconds(),
            latency=engine.stats.recent.percentiles(now),
            kv_map=self._kv_map,
            lanes=[t.lane() for t in engine.timelines.recent(now - LANE_SECONDS, MAX_LANES)],
            prefix_tree=self._prefix_nodes,
            devices=await asyncio.to_thread(self._read_devices),
            stages=stages(engine.stats, engine.resolved.config),
        )

    def _read_devices(self) -> list[DeviceReading]:
        """Read the devices in a thread: sensors are many small files."""
        if self._devices is None:
            self._devices = devices()
        return [device.read() for device in self._devices]

    async def _ask(self, engine: AsyncLLM) -> None:
        """Ask the core for its KV cache, unless an earlier question is unanswered."""
        if self._asked is None:
            self._asked = asyncio.create_task(engine.call("kv_snapshot"))
            self._asked.add_done_callback(_retrieve)
        await asyncio.wait({self._asked}, timeout=PATIENCE)
        if self._asked.done():
            asked, self._asked = self._asked, None
            found = msgspec.convert(asked.result(), KVSnapshot)
            self._kv_map = kv_map(found.map, engine.timelines)
            self._prefix_nodes = prefix_nodes(found.tree)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve the error of a dead core, which asyncio would log if no viewer is left."""
    if not task.cancelled():
        task.exception()
