"""What each pipeline stage holds, and how long a token needs to pass all of them."""

from __future__ import annotations

import msgspec

from quire.core.config import EngineConfig
from quire.core.cost import HardwareProfile
from quire.models.memory import loaded_bytes
from quire.models.weights.shares import stage_config, worker_grid
from quire.simulate.stages import ModelledStage, modelled_stages


class StageFit(msgspec.Struct, frozen=True):
    """A stage of the plan.

    Attributes:
        node: the machine that it runs on.
        weights: bytes.
        step_ms: its part of a decoding step of one sequence.
        link_ms: the time that the rows of this step need from the stage before.
    """

    stage: int
    node: int
    layers: int
    weights: int
    step_ms: float
    link_ms: float


def stage_fits(config: EngineConfig, hardware: HardwareProfile, context: int) -> list[StageFit]:
    """Return the stages of an engine on machines like `hardware`; [] if it has one.

    `context`: tokens of the decoding sequence.
    """
    grid, found = worker_grid(config), []
    if grid.stages == 1:
        return []
    for number, stage in enumerate(modelled_stages(config, hardware)):
        part = stage_config(config, number)
        found.append(
            StageFit(
                stage=number,
                node=grid.node(number * grid.ranks),
                layers=len(part.model.layers),
                weights=loaded_bytes(part),
                step_ms=1e3 * _device_seconds(stage, 1, context),
                link_ms=1e3 * (stage.link_seconds + stage.row_seconds),
            )
        )
    return found


def decode_seconds(
    config: EngineConfig, hardware: HardwareProfile, sequences: int, context: int
) -> float:
    """Return the time of one more token of each sequence, which have `context` tokens.

    The sequences are dealt out to as many steps as there are stages. A step passes all stages, and
    each stage computes all steps; the longer of the two decides.
    """
    stages = modelled_stages(config, hardware)
    steps = min(sequences, len(stages))
    batch = -(-sequences // steps)
    times = [_device_seconds(stage, batch, context) for stage in stages]
    links = sum(stage.link_seconds + batch * stage.row_seconds for stage in stages)
    host = stages[0].cost.host_seconds(batch)
    return max(host + sum(times) + links, steps * (host + max(times)))


def _device_seconds(stage: ModelledStage, batch: int, context: int) -> float:
    cost = stage.cost
    return cost.seconds(batch, batch, batch * context) - cost.host_seconds(batch)
