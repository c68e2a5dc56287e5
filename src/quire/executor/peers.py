"""A worker's place among those that compute a model together."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from quire.core.config import ON_TORCH, EngineConfig, RankShare
from quire.parallel.grid import Grid
from quire.parallel.stage import FarLink, Link, NearLink, RowShape, Stage

if TYPE_CHECKING:
    from quire.ops.rank_group import RankGroup
    from quire.ops.torch_ops.rank_group import TorchRankGroup

NO_PIPE = -1


class Ends(NamedTuple):
    """Descriptors of what a worker shares with others.

    Attributes:
        memory: of all workers: a part for the ranks of each stage, then one for each link.
        before, behind: ends of pipes from the stage before and to the one behind, or `NO_PIPE`;
            sockets if that stage is on another machine.
    """

    memory: int
    before: int = NO_PIPE
    behind: int = NO_PIPE

    @property
    def all(self) -> tuple[int, ...]:
        return tuple(end for end in self if end != NO_PIPE)


class Peers(Protocol):
    """The other workers, as one with a share of a model sees them."""

    @property
    def ends(self) -> Ends: ...

    def agree(self, num_blocks: int, num_states: int) -> tuple[int, int]:
        """Return the numbers of KV blocks and of state slots that fit on every worker; these fit on
        this one."""


class Place:
    """The ranks of a worker's stage, and the stages beside it.

    Attributes:
        group: None if the stage has one rank.
        stage: None if there is one stage.

    Args:
        peers: None if it is the only worker.
    """

    def __init__(self, config: EngineConfig, peers: Peers | None) -> None:
        self.group: RankGroup | TorchRankGroup | None = None
        self.stage: Stage | None = None
        share = config.share
        if peers is None or share is None:
            return
        ends = peers.ends
        if share.ranks > 1:
            self.group = _group(config, share, ends.memory)
        if share.stages > 1:
            self.stage = Stage(
                _link(config, ends.memory, ends.before, share.worker - share.ranks, share.worker),
                _link(config, ends.memory, ends.behind, share.worker, share.worker + share.ranks),
            )

    def begin(self, step: int) -> None:
        """Begin a step, whose number is higher than that of the last one."""
        if self.group is not None:
            self.group.begin(step)
        if self.stage is not None:
            self.stage.begin(step)

    def fail(self) -> None:
        """Stop others from waiting for this worker in the present step."""
        if self.group is not None:
            self.group.fail()
        if self.stage is not None:
            self.stage.fail()

    def lose(self) -> None:
        """Stop the ranks from waiting for each other, after one was lost."""
        if self.group is not None:
            self.group.lose()

    def close(self) -> None:
        """End what connects this worker with others."""
        if self.stage is not None:
            self.stage.close()


def _group(config: EngineConfig, share: RankShare, memory: int) -> RankGroup | TorchRankGroup:
    offset = share.stage * group_bytes(share.ranks)
    if config.ops in ON_TORCH:
        from quire.ops.torch_ops.rank_group import TorchRankGroup

        cuda = config.device == "cuda"
        return TorchRankGroup(memory, share.rank, share.ranks, offset, cuda=cuda)
    from quire.ops.rank_group import RankGroup

    return RankGroup(memory, share.rank, share.ranks, offset)


def shared_bytes(config: EngineConfig) -> int:
    """Return the bytes of memory that an engine's workers share."""
    ranks, stages = config.tensor_parallel_size, config.pipeline_parallel_size
    return stages * group_bytes(ranks) + (stages - 1) * ranks * _link_bytes(config)


def group_bytes(ranks: int) -> int:
    """Return the bytes for the ranks of a stage, in whole pages; 0 for one rank."""
    if ranks == 1:
        return 0
    from quire.ops.rank_memory import rank_group_bytes
    from quire.parallel.shared_memory import whole_pages

    return whole_pages(rank_group_bytes(ranks))


def _link(config: EngineConfig, memory: int, pipe: int, sender: int, receiver: int) -> Link | None:
    """Return this worker's end of the link between two workers, of which it is one."""
    share = config.share
    if pipe == NO_PIPE or share is None:
        return None
    grid = Grid(share.ranks, share.stages, config.cluster.nnodes)
    begin = sum(config.stage_layers[: grid.stage(receiver)])
    shape = _row_shape(config, sum(tap < begin for tap in config.model.head_taps))
    if grid.node(sender) != grid.node(receiver):
        return FarLink(pipe, shape, receives=share.worker == receiver)
    offset = share.stages * group_bytes(share.ranks) + sender * _link_bytes(config)
    return NearLink(memory, offset, pipe, shape)


def _link_bytes(config: EngineConfig) -> int:
    """Return the bytes of memory for each link: what the one with the most rows needs."""
    return _row_shape(config, len(config.model.head_taps)).nbytes


def _row_shape(config: EngineConfig, taps: int) -> RowShape:
    """Return the shape of rows, with layers' own embeddings and the rows of `taps` layers beside
    them."""
    from quire.core.dtypes import dtype_of

    return RowShape(
        config.scheduler.max_num_batched_tokens,
        config.model.hidden_size * (1 + taps) + config.model.own_columns,
        dtype_of(config.dtype),
        config.steps_in_flight,
    )
