"""Operations that differ by row: low-rank adapters and mixtures of experts."""

from __future__ import annotations

import numpy as np

from quire.bench.kernels.case import Case, copies
from quire.bench.kernels.cases import Cases, Setting, linears
from quire.core.dtypes import FLOAT32
from quire.core.layers import MoEConfig, RouteSpec
from quire.ops.weights import Epilogue, LinearWeight

RANK, ADAPTERS = 16, 8
EXPERTS, TOP_K = 32, 4


def lora(s: Setting) -> Cases:
    """Every linear layer's adapters of rank 16, eight of them in turns among the rows.

    The weights of those that some row has are read once; y is read and written.
    """
    dtype = s.variant.numpy_dtype

    def case(name: str, n: int, k: int, rows: int) -> Case:
        unit = ADAPTERS * RANK * (n + k) * dtype.itemsize
        count = copies(unit)
        a = s.noise(dtype, count, ADAPTERS, RANK, k)
        b = s.noise(dtype, count, ADAPTERS, RANK, n)
        tables = [s.ops.lora_table(k, (n,), ADAPTERS, dtype) for _ in range(count)]
        for i, table in enumerate(tables):
            for j in range(ADAPTERS):
                table.set(j, 0, s.ops.numpy(a[i, j]), s.ops.numpy(b[i, j]), 1.0)
        x, y = s.noise(dtype, rows, k), s.noise(dtype, rows, n)
        # Neighbours share one.
        adapter = s.ops.array(np.arange(rows) * ADAPTERS // max(rows, ADAPTERS))
        used = min(rows, ADAPTERS)
        return s.case(
            "lora", name, f"{n}x{k} rank {RANK}", rows,
            lambda i: s.ops.lora_add(adapter, y, x, tables[i % count]),
            lambda torch: torch.lora(adapter, y, x, list(a), list(b)),
            moved_bytes=unit * used // ADAPTERS + x.nbytes + 2 * y.nbytes,
            rotated_bytes=count * unit, flops=2 * rows * RANK * (n + k),
        )  # fmt: skip

    for name, n, k, _ in linears(s.model):
        if name != "lm_head":
            yield [case(name, n, k, rows) for rows in s.rows]


def moe(s: Setting) -> Cases:
    """Yield the router and the experts of a layer.

    A dense model gets 32 experts, each an eighth as wide as its layers, 4 for a row. The weights of
    the experts that some row chose are read once.
    """
    m, dtype = s.model, s.variant.numpy_dtype
    hidden, width = m.hidden_size, max(32, m.intermediate_size // 8 // 32 * 32)
    config = m.moe or MoEConfig(EXPERTS, width, RouteSpec(TOP_K))
    experts, width, spec = config.num_experts, config.intermediate_size, config.route

    def pack(n: int, k: int, epilogue: Epilogue) -> LinearWeight:
        one = s.ops.numpy(s.noise(dtype, n, k))  # all alike: nothing depends on the numbers
        return s.ops.pack_linear([one] * experts, epilogue=epilogue, experts=experts)

    gate_up, down = pack(2 * width, hidden, "silu_mul"), pack(hidden, width, "none")
    nbytes = (gate_up.nbytes + down.nbytes) // experts

    def layer(rows: int) -> Case:
        # As many choices as rotate through all experts, so that their weights leave the caches.
        count = max(1, -(-2 * copies(experts * nbytes) * experts // (rows * spec.top_k)))
        choices = s.random.random((count, rows, experts)).argsort(-1)[:, :, : spec.top_k]
        chosen = list(s.ops.array(np.ascontiguousarray(choices)))
        weights = s.ops.array(np.full((rows, spec.top_k), 1 / spec.top_k, np.float32))
        x = s.noise(dtype, rows, hidden)
        used = sum(len(np.unique(one)) for one in choices)
        return s.case(
            "moe", "experts", f"{experts} of {2 * width}x{hidden}, top {spec.top_k}", rows,
            lambda i: s.ops.moe(x, chosen[i % count], weights, gate_up, down),
            None,
            moved_bytes=used * nbytes // count + 2 * x.nbytes, rotated_bytes=experts * nbytes,
            flops=6 * rows * spec.top_k * hidden * width,
        )  # fmt: skip

    def router(rows: int) -> Case:
        logits = s.rotated(FLOAT32, rows, experts)
        moved = rows * (4 * experts + 12 * spec.top_k)
        return s.case(
            "moe", "route", f"{spec.top_k} of {experts}", rows,
            lambda i: s.ops.route(logits[i % len(logits)], None, spec),
            None,
            moved_bytes=moved, rotated_bytes=len(logits) * logits[0].nbytes,
        )  # fmt: skip

    yield [router(rows) for rows in s.rows]
    yield [layer(rows) for rows in s.rows]
