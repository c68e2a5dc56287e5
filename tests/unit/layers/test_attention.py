"""The attention layer against a computation without cache or fusion."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from quire.core.model_config import RopeConfig
from quire.layers.attention import Attention
from quire.layers.layer import Tokens
from quire.layers.linear import Linear
from quire.layers.rotary import rope_table
from quire.ops.metadata import AttentionRules, Heads, KVCache
from quire.ops.providers import load_ops
from quire.ops.torch_ops import reference
from tests.golden.harness import make_metadata

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, TOKENS = 20, 4, 2, 6, 11


def test_forward() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(n * HEAD_DIM, HIDDEN) for n in (HEADS, KV_HEADS, KV_HEADS))
    out, bias = torch.randn(HIDDEN, HEADS * HEAD_DIM), torch.randn(HIDDEN)
    q_weight, k_weight = torch.rand(HEAD_DIM), torch.rand(HEAD_DIM)
    rope = RopeConfig(theta=100.0, rotary_dim=HEAD_DIM)
    cos_sin = torch.from_numpy(rope_table(rope, TOKENS))
    layer = Attention(
        Linear(reference.pack_linear(torch.cat([q, k, v]))),
        Linear(reference.pack_linear(out, bias)),
        heads=Heads(HEADS, KV_HEADS, HEAD_DIM, q_weight, k_weight, eps=1e-6),
        rules=AttentionRules(HEAD_DIM**-0.5),
        cos_sin=cos_sin,
    )
    x, positions = torch.randn(TOKENS, HIDDEN), torch.arange(TOKENS)
    cache = KVCache(*torch.zeros(2, 3, KV_HEADS, 8, HEAD_DIM))
    meta = make_metadata([TOKENS], [TOKENS], [[2, 0]], block_size=8)
    ops = load_ops("reference")
    got = layer.project(ops, layer.mix(ops, x, cache, Tokens(positions, meta)))

    def heads(weight: torch.Tensor, count: int) -> torch.Tensor:
        return (x @ weight.T).view(TOKENS, count, HEAD_DIM)

    q_heads = F.rms_norm(heads(q, HEADS), (HEAD_DIM,), q_weight, 1e-6)
    k_heads = F.rms_norm(heads(k, KV_HEADS), (HEAD_DIM,), k_weight, 1e-6)
    q_heads, k_heads = reference.rotary(q_heads, k_heads, positions, cos_sin)
    attended = F.scaled_dot_product_attention(
        q_heads.transpose(0, 1),
        k_heads.transpose(0, 1),
        heads(v, KV_HEADS).transpose(0, 1),
        is_causal=True,
        enable_gqa=True,
    )
    expected = attended.transpose(0, 1).reshape(TOKENS, -1) @ out.T + bias
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
