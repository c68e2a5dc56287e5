"""The ops of a decoder at a model's shapes.

A family yields its cases in groups. The cases of a group are measured in turns, for every ISA and
dtype.

Arguments rotate through up to 1024 copies, together twice as large as the last-level cache, because
a decode step reads its weights and KV cache from memory. If 1024 copies fit into the cache, they
stay there, as in a real step, and their rows report it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.bench.kernels.case import Call, Case, Variant, copies, noise
from quire.core.dtypes import DType
from quire.core.model_config import ModelConfig
from quire.models import specs
from quire.models.layout import Layout
from quire.ops.array import Array
from quire.ops.interface import Ops
from quire.ops.native.gemm import PackedLinear
from quire.ops.weights import GATED, Epilogue, LinearWeight
from quire.system.records import dataclass

if TYPE_CHECKING:
    from quire.bench.peers.torch_calls import TorchCalls

Plain = Callable[["TorchCalls"], Call]
"""Returns torch's call of an op."""


@dataclass(frozen=True)
class Setting:
    """The settings that the cases of one family share.

    Attributes:
        variant: their dtypes and ISA; its `rows` are unused.
        contexts: tokens of context for decode attention, one case each.
        max_num_seqs: maximum decoding sequences and rows of logits.
        torch: makes torch's counterparts; None if not requested.
        random: draws arguments.
        cache_bytes: what arguments must outgrow; by default the CPU's largest cache.
    """

    model: ModelConfig
    ops: Ops
    variant: Variant
    rows: list[int]
    contexts: list[int]
    block_size: int
    max_num_seqs: int
    torch: TorchCalls | None = None
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    cache_bytes: int | None = None

    def case(
        self,
        op: str,
        name: str,
        shape: str,
        rows: int,
        call: Call,
        plain: Plain | None,
        *,
        moved_bytes: int,
        rotated_bytes: int,
        flops: int = 0,
    ) -> Case:
        """Return a case; `plain` makes torch's call, if torch has such an op."""
        torch_call = None if plain is None or self.torch is None else plain(self.torch)
        return Case(
            op, name, shape, replace(self.variant, rows=rows), call, moved_bytes, flops,
            rotated_bytes, torch_call,
        )  # fmt: skip

    def noise(self, dtype: DType, *shape: int) -> Array:
        return self.ops.array(noise(self.random, shape, dtype))

    def copies(self, nbytes: int) -> int:
        """Return how many copies of `nbytes` outgrow the caches."""
        return copies(nbytes, self.cache_bytes)

    def rotated(self, dtype: DType, *shape: int) -> list[Array]:
        """Return copies of such an array, enough to outgrow the caches."""
        count = self.copies(dtype.itemsize * math.prod(shape))
        return list(self.noise(dtype, count, *shape))


Cases = Iterator[list[Case]]


def embedding(s: Setting) -> Cases:
    """Yield reads of rows of the token embedding."""
    vocab, hidden, dtype = s.model.vocab_size, s.model.hidden_size, s.variant.numpy_dtype
    table = s.noise(dtype, vocab, hidden)

    def case(rows: int) -> Case:
        moved = 2 * rows * hidden * dtype.itemsize
        ids = list(s.ops.array(s.random.integers(vocab, size=(copies(moved), rows))))
        n = len(ids)
        return s.case(
            "embedding", "embedding", f"{vocab}x{hidden}", rows,
            lambda i: s.ops.embedding(ids[i % n], table),
            lambda torch: torch.embedding(ids, table),
            moved_bytes=moved, rotated_bytes=n * moved,
        )  # fmt: skip

    yield [case(rows) for rows in s.rows]


def norm(s: Setting) -> Cases:
    """Yield the model's norm, alone and with the residual addition."""
    hidden, eps, dtype = s.model.hidden_size, s.model.norm_eps, s.variant.numpy_dtype
    kind = s.model.norm
    weights = [s.noise(dtype, hidden) for _ in range(1 if kind == "rms_norm" else 2)]
    alone, fused = getattr(s.ops, kind), getattr(s.ops, f"add_{kind}")

    def norms(rows: int) -> Case:
        x = s.rotated(dtype, rows, hidden)
        n, unit = len(x), x[0].nbytes
        return s.case(
            "norm", kind, str(hidden), rows,
            lambda i: alone(x[i % n], *weights, eps),
            lambda torch: torch.norm(kind, x, weights, eps),
            moved_bytes=2 * unit, rotated_bytes=n * unit,
        )  # fmt: skip

    def add_norms(rows: int) -> Case:
        x, residual = (s.rotated(dtype, rows, hidden) for _ in range(2))
        n, unit = len(x), x[0].nbytes
        return s.case(
            "norm", f"add_{kind}", str(hidden), rows,
            lambda i: fused(x[i % n], residual[i % n], *weights, eps),
            lambda torch: torch.add_norm(kind, x, residual, weights, eps),
            moved_bytes=4 * unit, rotated_bytes=2 * n * unit,
        )  # fmt: skip

    yield [norms(rows) for rows in s.rows]
    yield [add_norms(rows) for rows in s.rows]


def pack(s: Setting) -> Cases:
    """Yield the packing of every linear weight; `rows` are the weight's."""

    def case(name: str, n: int, k: int, epilogue: Epilogue) -> Case:
        weights = s.rotated(s.variant.numpy_dtype, n, k)

        def call(i: int) -> LinearWeight:
            weight = weights[i % len(weights)]
            return s.ops.pack_linear(s.ops.numpy(weight), epilogue=epilogue, head=name == "lm_head")

        unit = weights[0].nbytes
        moved = unit + getattr(call(0), "nbytes", unit)
        return s.case(
            "pack", name, f"{n}x{k}", n, call, None,
            moved_bytes=moved, rotated_bytes=moved * len(weights),
        )  # fmt: skip

    for linear in linears(s.model):
        yield [case(*linear)]


def gemm(s: Setting) -> Cases:
    """Yield every linear layer; each call uses another copy of the packed weight."""
    for name, n, k, epilogue in linears(s.model):
        yield _products(s, name, n, k, epilogue)


def quantize(s: Setting) -> Cases:
    """Yield the quantization of x before a product; in a step, a norm's tasks do it."""
    dtype = s.variant.numpy_dtype

    def case(k: int, rows: int, weight: LinearWeight) -> Case:
        assert isinstance(weight, PackedLinear)
        x: list[Any] = s.rotated(dtype, rows, k)
        n, unit = len(x), x[0].nbytes
        return s.case(
            "quantize", "rows", str(k), rows,
            lambda i: weight.prepare(x[i % n]), None,
            moved_bytes=unit + rows * k, rotated_bytes=n * unit,
        )  # fmt: skip

    for k in dict.fromkeys(k for _, _, k, _ in linears(s.model)):
        if s.variant.quantization is None:
            yield []  # x is not quantized
        else:
            weight = s.ops.pack_linear(s.ops.numpy(s.noise(dtype, 32, k)))
            yield [case(k, rows, weight) for rows in s.rows]


def linears(m: ModelConfig) -> Iterator[tuple[str, int, int, Epilogue]]:
    """Yield (name, N, K, epilogue) of a layer's linear weights [N, K], and of the head."""
    for linear in specs.linears(Layout(m).layers[0]):
        name = linear.stem.rpartition(".")[2]
        yield name, sum(linear.parts), linear.columns, linear.activation or "none"
    yield "lm_head", m.vocab_size, m.hidden_size, "none"


def _products(s: Setting, name: str, n: int, k: int, epilogue: Epilogue) -> list[Case]:
    """Return the cases of a linear layer [n, k] and its epilogue; "lm_head" gives logits."""
    head, dtype = name == "lm_head", s.variant.numpy_dtype
    compute = s.ops.logits if head else s.ops.linear
    weight = s.ops.numpy(s.noise(dtype, n, k))

    def pack() -> LinearWeight:
        return s.ops.pack_linear(weight, epilogue=epilogue, head=head)

    first = pack()
    nbytes: int = getattr(first, "nbytes", weight.nbytes)
    packed = [first, *(pack() for _ in range(s.copies(nbytes) - 1))]
    weights = s.rotated(dtype, n, k) if s.torch is not None else []
    columns = n // 2 if epilogue in GATED else n

    def case(rows: int) -> Case:
        x = list(s.noise(dtype, len(packed), rows, k))
        y_bytes = rows * columns * (4 if head else dtype.itemsize)
        return s.case(
            "gemm", name, f"{n}x{k}" if epilogue == "none" else f"{n}x{k} {epilogue}", rows,
            lambda i: compute(x[i % len(x)], packed[i % len(x)]),
            lambda torch: torch.linear(x, weights),
            flops=2 * rows * n * k, moved_bytes=nbytes + x[0].nbytes + y_bytes,
            rotated_bytes=(nbytes + x[0].nbytes) * len(x),
        )  # fmt: skip

    return [case(rows) for rows in s.rows if not head or rows <= s.max_num_seqs]


def activation(s: Setting) -> Cases:
    """Yield the MLP's activation alone; in a step it is the epilogue of its product."""
    m, dtype = s.model, s.variant.numpy_dtype
    name = m.activation
    width = m.intermediate_size * (2 if m.gated_mlp else 1)

    def case(rows: int) -> Case:
        x = s.rotated(dtype, rows, width)
        n, unit = len(x), x[0].nbytes
        return s.case(
            "activation", name, str(width), rows,
            lambda i: s.ops.activation(x[i % n], name),
            lambda torch: torch.activation(name, x),
            moved_bytes=unit + rows * m.intermediate_size * dtype.itemsize, rotated_bytes=n * unit,
        )  # fmt: skip

    yield [case(rows) for rows in s.rows]
