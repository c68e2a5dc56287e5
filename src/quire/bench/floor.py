"""The memory floor of a decode step: the bytes it must read, over the bandwidth there is."""

from __future__ import annotations

from dataclasses import dataclass

from quire.core.config import ModelConfig
from quire.models.memory import looked_up_bytes


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes that one decode step of the whole batch must read from memory."""

    weights: float
    kv: float

    def floor_fraction(self, decode_tok_s: float, batch_size: int, bandwidth_gb_s: float) -> float:
        """Share of the memory floor reached: 1.0 reads at the measured bandwidth.

        `decode_tok_s` is the aggregate over the batch, so that `decode_tok_s / batch_size` is
        steps a second; times the bytes of a step, over the bandwidth in 10⁹ bytes a second. A model
        that fits into the CPU's caches can pass 1.
        """
        return decode_tok_s / batch_size * (self.weights + self.kv) / (bandwidth_gb_s * 1e9)


def step_bytes(
    model: ModelConfig,
    *,
    dtype: str,
    weight_bytes: int,
    kv_bytes_per_token: int,
    batch_size: int,
    input_len: int,
    output_len: int,
) -> StepBytes:
    """Count what decode steps 1 to `output_len` − 1 read, averaged over them.

    Weights: all of `weight_bytes` but the tables of which a step reads only its own rows: learned
    positions, and the token embedding where it does not double as the output projection.

    KV: batch × average context × bytes a token. Step s attends to `input_len` + s tokens, or, on a
    layer with a sliding window, to at most that window.

    Args:
        dtype: of weights and activations; the tables' element type.
        weight_bytes: of all weights as held in memory.
    """
    looked_up = looked_up_bytes(model, dtype)
    contexts = range(input_len + 1, input_len + output_len)
    windows = [model.window(layer) for layer in range(model.num_hidden_layers)]
    reads = sum(min(context, window or context) for context in contexts for window in windows)
    average_context = reads / (len(contexts) * len(windows))
    return StepBytes(
        weights=weight_bytes - looked_up, kv=batch_size * average_context * kv_bytes_per_token
    )
