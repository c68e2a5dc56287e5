"""Pipeline stages on simulated machines: what a step costs on each, and on the way to it."""

from __future__ import annotations

from dataclasses import replace

from quire.core.config import EngineConfig
from quire.core.cost import HardwareProfile, RooflineCost
from quire.core.dtypes import dtype_of
from quire.models.cost import roofline
from quire.models.weights.shares import stage_config, worker_grid
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class ModelledStage:
    """A pipeline stage, and the network before it.

    Attributes:
        link_seconds, row_seconds: time that a step's rows need to get here: for all, and per row.
        request_seconds: the host's time for each new sequence; of the first stage.
    """

    cost: RooflineCost
    link_seconds: float = 0.0
    row_seconds: float = 0.0
    request_seconds: float = 0.0


def modelled_stages(config: EngineConfig, hardware: HardwareProfile) -> list[ModelledStage]:
    """Return the stages of an engine whose machines are all like `hardware`.

    Stages on the same machine have equal parts of its rates, and no network between them.
    """
    grid = worker_grid(config)
    part = 1.0 / grid.stages_per_node
    share = replace(
        hardware,
        bytes_per_second=hardware.bytes_per_second * part,
        flops_per_second={dtype: rate * part for dtype, rate in hardware.flops_per_second.items()},
    )
    row = grid.ranks * config.model.hidden_size * dtype_of(config.dtype).itemsize
    stages = []
    for number in range(grid.stages):
        stage = ModelledStage(roofline(stage_config(config, number), share))
        if number > 0 and number % grid.stages_per_node == 0:
            link = hardware.link
            stage = ModelledStage(stage.cost, link.seconds, row / link.bytes_per_second)
        stages.append(stage)
    return stages
