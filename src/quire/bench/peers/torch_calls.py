"""Single operations in plain torch, for `quire bench kernels --torch` to time next to Quire's.

Each method takes the arrays that Quire's operation gets, in as many copies, and returns the call of
turn i. Nothing is converted while it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.ops.torch_ops.arrays import tensor

Call = Callable[[int], object]
Arrays = Sequence[Any]

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
}


class TorchCalls:
    """torch's counterparts of the operations, on `threads` threads."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def embedding(self, ids: Arrays, table: Any) -> Call:
        return _rotating(F.embedding, ids, [table])

    def norm(self, kind: str, x: Arrays, weights: Arrays, eps: float) -> Call:
        return _rotating(self._norm(kind, weights, eps), x)

    def add_norm(self, kind: str, x: Arrays, residual: Arrays, weights: Arrays, eps: float) -> Call:
        norm = self._norm(kind, weights, eps)
        return _rotating(lambda x, residual: norm(x + residual), x, residual)

    def linear(self, x: Arrays, weights: Arrays) -> Call:
        return _rotating(F.linear, x, weights)

    def activation(self, name: str, x: Arrays) -> Call:
        if not name.endswith("_mul"):
            return _rotating(_ACTIVATIONS[name], x)
        function = _ACTIVATIONS[name.removesuffix("_mul")]

        def gated(x: Tensor) -> Tensor:
            gate, up = x.chunk(2, dim=-1)
            return function(gate) * up

        return _rotating(gated, x)

    def attention(self, q: Arrays, sequences: int, k: Any, v: Any) -> Call:
        """q [tokens, heads, dim]; keys and values [sequences, kv_heads, context, dim], dense."""
        keys, values = _tensors([k, v])
        grouped = q[0].shape[1] != keys.shape[1]

        def attend(q: Tensor) -> Tensor:
            queries = q.view(sequences, -1, *q.shape[1:]).transpose(1, 2)
            is_causal = queries.shape[2] > 1
            return F.scaled_dot_product_attention(
                queries, keys, values, is_causal=is_causal, enable_gqa=grouped
            )

        return _rotating(attend, q)

    def lora(self, adapter: Any, y: Any, x: Any, a: Arrays, b: Arrays) -> Call:
        """Apply one adapter after the other: y += (x A) B; adapters [ADAPTERS, rank, width]."""
        [rows] = _tensors([adapter])
        own = [rows == number for number in rows.unique().tolist()]

        def add(y: Tensor, x: Tensor, a: Tensor, b: Tensor) -> None:
            for j, mine in enumerate(own):
                y[mine] += (x[mine] @ a[j].t()) @ b[j]

        return _rotating(add, [y], [x], a, b)

    def argmax(self, logits: Arrays) -> Call:
        return _rotating(lambda x: x.max(dim=-1), logits)

    def logprobs(self, logits: Arrays, count: int) -> Call:
        return _rotating(lambda x: torch.log_softmax(x, dim=-1).topk(count), logits)

    @staticmethod
    def _norm(kind: str, weights: Arrays, eps: float) -> Callable[[Tensor], Tensor]:
        weight, *bias = _tensors(weights)
        if kind == "rms_norm":
            return lambda x: F.rms_norm(x, weight.shape, weight, eps)
        return lambda x: F.layer_norm(x, weight.shape, weight, bias[0], eps)


def _rotating(function: Callable[..., object], *arguments: Arrays) -> Call:
    """Return the call of turn i; each argument rotates through its copies."""
    given = [_tensors(copies) for copies in arguments]
    return lambda i: function(*(copies[i % len(copies)] for copies in given))


def _tensors(arrays: Arrays) -> list[Tensor]:
    return [each if isinstance(each, Tensor) else tensor(each) for each in arrays]
