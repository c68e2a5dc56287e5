"""What flash-attn and FlashInfer promise to compute, in float64, for arguments that they accept.

Signatures and conditions are those of `flash_attn.flash_attn_varlen_func` (2.8) and of
`flashinfer.BatchPrefillWithPagedKVCacheWrapper` (0.6), as far as Quire passes arguments. What the
packages would refuse, or read wrongly, fails here.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

HALVES = (torch.float16, torch.bfloat16)


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool, left: int, softcap: float
) -> Tensor:
    """Return the attention of one sequence's last rows: [rows, heads, width]."""
    group = q.shape[1] // k.shape[1]
    wide = [x.double().repeat_interleave(group, 1) for x in (k, v)]
    scores = torch.einsum("rhd,khd->hrk", q.double(), wide[0]) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    row = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
    key = torch.arange(len(k), device=q.device)[None]
    hidden = (key > row) if causal else key < 0
    if left >= 0:
        hidden = hidden | (key < row - left)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hrk,khd->rhd", weights, wide[1]).to(q.dtype)


def check_rows(q: Tensor) -> None:
    assert q.dim() == 3
    assert q.dtype in HALVES
    assert q.is_contiguous()
    assert q.shape[2] % 8 == 0
    assert q.shape[2] <= 256


class FlashAttn(ModuleType):
    """`calls` counts."""

    def __init__(self) -> None:
        super().__init__("flash_attn")
        self.calls = 0

    def flash_attn_varlen_func(
        self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
        max_seqlen_q: int, max_seqlen_k: int, dropout_p: float = 0.0,
        softmax_scale: float | None = None, causal: bool = False,
        window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0,
    ) -> Tensor:  # fmt: skip
        self.calls += 1
        check_rows(q)
        assert k.shape == v.shape
        assert k.dtype == v.dtype == q.dtype
        assert k.stride(-1) == v.stride(-1) == 1
        assert q.shape[1] % k.shape[1] == 0
        assert dropout_p == 0.0
        for starts, rows in ((cu_seqlens_q, q), (cu_seqlens_k, k)):
            assert starts.dtype == torch.int32
            assert starts.is_contiguous()
            assert starts.device == q.device
            assert int(starts[0]) == 0
            assert int(starts[-1]) == len(rows)
        assert int(cu_seqlens_q.diff().max()) == max_seqlen_q
        assert int(cu_seqlens_k.diff().max()) == max_seqlen_k
        left, right = window_size
        assert right == (0 if left >= 0 else -1)
        scale = q.shape[2] ** -0.5 if softmax_scale is None else softmax_scale
        parts = zip(
            q.split(cu_seqlens_q.diff().tolist()), k.split(cu_seqlens_k.diff().tolist()),
            v.split(cu_seqlens_k.diff().tolist()), strict=True,
        )  # fmt: skip
        rules: dict[str, Any] = {"causal": causal, "left": left, "softcap": softcap}
        return torch.cat([attend(*part, scale, **rules) for part in parts])


class Wrapper:
    """`flashinfer.BatchPrefillWithPagedKVCacheWrapper`."""

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert float_workspace_buffer.data_ptr() % 16 == 0
        assert kv_layout == "HND"
        self.device = float_workspace_buffer.device
        self._planned: dict[str, Any] | None = None

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
        page_size: int, *, causal: bool = False, sm_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16, kv_data_type: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        Flashinfer.plans += 1
        sequences = len(qo_indptr) - 1
        for numbers in (qo_indptr, paged_kv_indptr, paged_kv_last_page_len):
            assert numbers.dtype == torch.int32
            assert numbers.device.type == "cpu", "else plan waits for the device"
        assert paged_kv_indices.dtype == torch.int32
        assert paged_kv_indices.device == self.device
        assert len(paged_kv_indptr) == sequences + 1
        assert len(paged_kv_last_page_len) == sequences
        assert int(paged_kv_indptr[-1]) == len(paged_kv_indices)
        assert int(paged_kv_last_page_len.min()) >= 1
        assert int(paged_kv_last_page_len.max()) <= page_size
        assert num_qo_heads % num_kv_heads == 0
        assert head_dim_qk in (64, 128, 256)
        assert q_data_type == (kv_data_type or q_data_type)
        self._planned = {
            name: value for name, value in locals().items() if name not in ("self", "numbers")
        }

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        Flashinfer.runs += 1
        p = self._planned
        assert p is not None, "plan comes before run"
        check_rows(q)
        assert q.dtype == p["q_data_type"]
        assert q.shape[1:] == (p["num_qo_heads"], p["head_dim_qk"])
        assert len(q) == int(p["qo_indptr"][-1])
        k, v = paged_kv_cache
        assert k.shape == v.shape
        assert k.shape[1:] == (p["num_kv_heads"], p["page_size"], p["head_dim_qk"])
        results = []
        for i, rows in enumerate(q.split(p["qo_indptr"].diff().tolist())):
            first, last = p["paged_kv_indptr"][i : i + 2].tolist()
            pages = p["paged_kv_indices"][first:last].long()
            length = (last - first - 1) * p["page_size"] + int(p["paged_kv_last_page_len"][i])
            keys, values = (x[pages].transpose(1, 2).flatten(0, 1)[:length] for x in (k, v))
            rules = {
                "causal": p["causal"], "left": p["window_left"], "softcap": p["logits_soft_cap"],
            }  # fmt: skip
            results.append(attend(rows, keys, values, p["sm_scale"], **rules))
        return torch.cat(results)


class Flashinfer(ModuleType):
    plans = runs = 0
    BatchPrefillWithPagedKVCacheWrapper = Wrapper

    def __init__(self) -> None:
        super().__init__("flashinfer")
        Flashinfer.plans = Flashinfer.runs = 0

    @property
    def calls(self) -> int:
        return Flashinfer.runs


def install(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """Let `import_module(name)` find the fake package; return it."""
    module = FlashAttn() if name == "flash_attn" else Flashinfer()
    monkeypatch.setitem(__import__("sys").modules, name, module)
    return module
