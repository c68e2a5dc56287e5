"""Which of an engine's workers belong together."""

from __future__ import annotations

from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """Workers in `stages` rows of `ranks`: each stage has some of the layers, and each of its ranks
    a share of every one of these. Workers are numbered stage by stage. Each of the
    `nodes` (machines) has equally many neighbouring stages.

        Grid(ranks=2, stages=4)      stage 0: workers 0 1     stage 2: workers 4 5
                                     stage 1: workers 2 3     stage 3: workers 6 7
    """

    ranks: int
    stages: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.stages < 1:
            raise ValueError(f"a grid of {self.stages} stages of {self.ranks} ranks has no worker")
        if self.nodes < 1 or self.stages % self.nodes:
            raise ValueError(f"{self.stages} stages cannot be divided among {self.nodes} nodes")

    @property
    def size(self) -> int:
        return self.ranks * self.stages

    def rank(self, worker: int) -> int:
        """Return the worker's number within its stage."""
        return worker % self.ranks

    def stage(self, worker: int) -> int:
        return worker // self.ranks

    def node(self, worker: int) -> int:
        """Return the machine that the worker runs on."""
        return self.stage(worker) // self.stages_per_node

    def workers_of(self, node: int) -> range:
        count = self.size // self.nodes
        return range(node * count, (node + 1) * count)

    @property
    def stages_per_node(self) -> int:
        return self.stages // self.nodes

    def stages_beside(self, stage: int) -> range:
        """Return the stages on the same machine as `stage`, including it."""
        first = stage - stage % self.stages_per_node
        return range(first, first + self.stages_per_node)

    @property
    def tensor_groups(self) -> list[list[int]]:
        """Return, for each stage, the workers that add up their parts of each layer."""
        return [[*range(first, first + self.ranks)] for first in range(0, self.size, self.ranks)]

    @property
    def pipeline_groups(self) -> list[list[int]]:
        """Return, for each rank, the workers that hand rows to the next one, first stage first."""
        return [[*range(rank, self.size, self.ranks)] for rank in range(self.ranks)]

    def name(self, worker: int) -> str:
        """Return what messages call the worker."""
        stage, rank = f"stage {self.stage(worker)}", f"rank {self.rank(worker)}"
        if self.nodes > 1:
            stage += f" on node {self.node(worker)}"
        if self.stages == 1:
            return rank
        return stage if self.ranks == 1 else f"{rank} of {stage}"
