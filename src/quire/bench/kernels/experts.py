"""Operations that differ by row: low-rank adapters and mixtures of experts."""

from __future__ import annotations

import numpy as np

from quire.bench.kernels.case import Case, copies
from quire.bench.kernels.cases import Cases, Setting, linears

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
    """A feed-forward layer of 32 experts, each an eighth as wide as the model's, 4 for a row.

    The weights of the experts that some row chose are read once.
    """
    m, dtype = s.model, s.variant.numpy_dtype
    hidden, width = m.hidden_size, max(32, m.intermediate_size // 8 // 32 * 32)
    gate_up = s.ops.pack_linear(
        s.ops.numpy(s.noise(dtype, EXPERTS * 2 * width, hidden)),
        epilogue="silu_mul",
        experts=EXPERTS,
    )
    down = s.ops.pack_linear(s.ops.numpy(s.noise(dtype, EXPERTS * hidden, width)), experts=EXPERTS)
    nbytes = (gate_up.nbytes + down.nbytes) // EXPERTS

    def case(rows: int) -> Case:
        # As many choices as rotate through all experts, so that their weights leave the caches.
        count = max(1, -(-2 * copies(EXPERTS * nbytes) * EXPERTS // (rows * TOP_K)))
        chosen = s.random.random((count, rows, EXPERTS)).argsort(-1)[:, :, :TOP_K]
        experts = list(s.ops.array(np.ascontiguousarray(chosen)))
        weights = s.ops.array(np.full((rows, TOP_K), 1 / TOP_K, np.float32))
        x = s.noise(dtype, rows, hidden)
        used = [np.unique(one) for one in chosen]
        moved = sum(map(len, used)) * nbytes // count
        return s.case(
            "moe", "experts", f"{EXPERTS} of {2 * width}x{hidden}, top {TOP_K}", rows,
            lambda i: s.ops.moe(x, experts[i % count], weights, gate_up, down),
            None,
            moved_bytes=moved + 2 * x.nbytes, rotated_bytes=EXPERTS * nbytes,
            flops=6 * rows * TOP_K * hidden * width,
        )  # fmt: skip

    yield [case(rows) for rows in s.rows]
