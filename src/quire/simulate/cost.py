"""How long a step takes: the roofline, and nothing finer."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.batch import SchedulerOutput


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """A step costs the larger of its memory traffic and its arithmetic, plus a fixed overhead.

    The defaults are a 0.6B bf16 model on two cores with 28 GB/s and 6 TFLOP/s.
    """

    weight_bytes: float = 1.2e9
    kv_bytes_per_token: float = 114_688.0
    flops_per_token: float = 1.2e9
    bytes_per_second: float = 28e9
    flops_per_second: float = 6e12
    overhead_seconds: float = 1e-4

    def seconds(self, batch: SchedulerOutput) -> float:
        context = sum(batch.num_computed_tokens) + batch.total_num_scheduled_tokens
        traffic = self.weight_bytes + self.kv_bytes_per_token * context
        flops = self.flops_per_token * batch.total_num_scheduled_tokens
        return self.overhead_seconds + max(
            traffic / self.bytes_per_second, flops / self.flops_per_second
        )
