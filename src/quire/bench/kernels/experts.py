"""What only some rows go through: low-rank adapters and mixtures of experts."""

from __future__ import annotations

import torch

from quire.bench.kernels.case import Case, copies, noise
from quire.bench.kernels.cases import Cases, Setting, linears
from quire.ops.lora import LoraTable

RANK, ADAPTERS = 16, 8
EXPERTS, TOP_K = 32, 4


def lora(s: Setting) -> Cases:
    """Every linear layer's adapters of rank 16, eight of them in turns among the rows.

    The weights of those that some row has are read once; y is read and written.
    """
    dtype = s.variant.torch_dtype

    def case(name: str, n: int, k: int, rows: int) -> Case:
        unit = ADAPTERS * RANK * (n + k) * dtype.itemsize
        count = copies(unit)
        a = noise((count, ADAPTERS, RANK, k), dtype)
        b = noise((count, ADAPTERS, RANK, n), dtype)
        tables = [LoraTable(k, (n,), ADAPTERS, dtype) for _ in range(count)]
        for i, table in enumerate(tables):
            for j in range(ADAPTERS):
                table.set(j, 0, a[i, j], b[i, j], 1.0)
        x, y = noise((rows, k), dtype), noise((rows, n), dtype)
        adapter = torch.arange(rows) * ADAPTERS // max(rows, ADAPTERS)  # neighbours share one
        used = min(rows, ADAPTERS)

        def plain(i: int) -> None:
            for j in range(used):
                mine = adapter == j
                y[mine] += (x[mine] @ a[i % count, j].t()) @ b[i % count, j]

        return s.case(
            "lora", name, f"{n}x{k} rank {RANK}", rows,
            lambda i: s.ops.lora_add(adapter, y, x, tables[i % count]),
            plain,
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
    m, dtype = s.model, s.variant.torch_dtype
    hidden, width = m.hidden_size, max(32, m.intermediate_size // 8 // 32 * 32)
    gate_up = [
        s.ops.pack_linear(noise((2 * width, hidden), dtype), epilogue="silu_mul")
        for _ in range(EXPERTS)
    ]
    down = [s.ops.pack_linear(noise((hidden, width), dtype)) for _ in range(EXPERTS)]
    dense = 3 * hidden * width * dtype.itemsize
    nbytes = [
        sum(getattr(part[e], "nbytes", dense // 2) for part in (gate_up, down))
        for e in range(EXPERTS)
    ]

    def case(rows: int) -> Case:
        # As many choices as rotate through all experts, so that their weights leave the caches.
        count = max(1, -(-2 * copies(sum(nbytes)) * EXPERTS // (rows * TOP_K)))
        chosen = torch.rand(count, rows, EXPERTS).topk(TOP_K).indices
        experts = [one.contiguous() for one in chosen.unbind(0)]
        weights = torch.full((rows, TOP_K), 1 / TOP_K)
        x = noise((rows, hidden), dtype)
        used = [one.unique().tolist() for one in experts]
        moved = sum(sum(nbytes[e] for e in each) for each in used) // count
        return s.case(
            "moe", "experts", f"{EXPERTS} of {2 * width}x{hidden}, top {TOP_K}", rows,
            lambda i: s.ops.moe(x, experts[i % count], weights, gate_up, down),
            None,
            moved_bytes=moved + 2 * x.nbytes, rotated_bytes=sum(nbytes),
            flops=6 * rows * TOP_K * hidden * width,
        )  # fmt: skip

    yield [case(rows) for rows in s.rows]
