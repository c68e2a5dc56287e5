"""The memory floor of a decode step: bytes that it must move, divided by the bandwidth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from quire.core.model_config import ModelConfig
from quire.models.memory import looked_up_bytes, state_bytes, unchosen
from quire.system.records import dataclass

TURN_STEPS = 8


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes that one decode step of the whole batch must move: reads, and states written back."""

    weights: float
    kv: float
    states: float = 0.0

    def floor_fraction(self, decode_tok_s: float, batch_size: int, bandwidth_gb_s: float) -> float:
        """Return the share of the memory floor that was reached; 1.0 is the measured bandwidth.

        A model that fits into the CPU's caches can exceed 1.

        Args:
            decode_tok_s: tokens per second of the whole batch.
            bandwidth_gb_s: 10⁹ bytes per second.
        """
        moved = self.weights + self.kv + self.states
        return decode_tok_s / batch_size * moved / (bandwidth_gb_s * 1e9)


def step_bytes(
    model: ModelConfig,
    *,
    dtype: str,
    weight_bytes: int,
    expert_bytes: int = 0,
    kv_bytes_per_token: int,
    batch_size: int,
    input_len: int,
    output_len: int,
) -> StepBytes:
    """Return the bytes that a decode step moves, averaged over steps 1 to `output_len` − 1.

    Weights: all except tables of which a step reads only its own rows (learned positions, and token
    embeddings that are not also the output projection). Of experts those that a batch is expected
    to choose: E · (1 − (1 − k/E)^batch).

    KV: batch × average context × bytes per token. Step s attends to `input_len` + s tokens, or in a
    layer with a sliding window to at most that window.

    States of recurrent layers: each is read and written.

    Args:
        dtype: dtype of weights and activations, and of the tables.
        expert_bytes: bytes of the experts among them.
    """
    unread = looked_up_bytes(model, dtype) + expert_bytes * unchosen(model) ** batch_size
    contexts = range(input_len + 1, input_len + output_len)
    windows = [model.window(layer) for layer in range(model.num_hidden_layers)]
    reads = sum(min(context, window or context) for context in contexts for window in windows)
    average_context = reads / (len(contexts) * len(windows))
    return StepBytes(
        weights=weight_bytes - unread,
        kv=batch_size * average_context * kv_bytes_per_token,
        states=2.0 * batch_size * state_bytes(model),
    )


def in_turns(
    steps: Iterable[tuple[int, float]], read: Callable[[], float], batch_size: int
) -> Iterator[tuple[float, float]]:
    """Read the memory before and after every few steps; yield tokens/s and GB/s of each turn.

    Memory may be twice as fast at one moment as at the next, for instance in a virtual machine. A
    rate and a bandwidth of the same moment have a steady ratio.

    The first step of a turn does not count: the read has emptied the caches. Nor does a step that
    gave fewer than `batch_size` tokens: it may have computed prompts.

    Args:
        steps: tokens and seconds of each step, which runs when its item is taken.
        read: reads once; returns GB/s.
    """
    left, before = iter(steps), read()
    while turn := list(islice(left, TURN_STEPS)):
        after = read()
        timed = [step for step in turn[1:] if step[0] >= batch_size]
        if timed:
            tokens, seconds = map(sum, zip(*timed, strict=True))
            yield tokens / seconds, 2.0 / (1.0 / before + 1.0 / after)
        before = after
