"""A compact Llama (GQA, RMSNorm, SwiGLU, RoPE, tied embeddings) written for training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class ModelSpec:
    """The shape of a model; every linear dimension is a multiple of 64."""

    vocab: int
    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    context: int = 1024
    rope_theta: float = 10000.0
    eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    def hf_config(self, bos: int, eos: int, pad: int) -> dict[str, Any]:
        """The config.json that transformers and Quire read."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.dim,
            "intermediate_size": self.ffn,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "torch_dtype": "bfloat16",
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": pad,
        }


def rope_tables(spec: ModelSpec, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin, each (length, head_dim), in the half-split layout transformers uses."""
    half = torch.arange(0, spec.head_dim, 2, device=device, dtype=torch.float32)
    freqs = 1.0 / spec.rope_theta ** (half / spec.head_dim)
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), freqs)
    both = torch.cat([angles, angles], dim=-1)
    return both.cos(), both.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos.to(x.dtype) + torch.cat([-second, first], dim=-1) * sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        kv = spec.kv_heads * spec.head_dim
        self.q_proj = nn.Linear(spec.dim, spec.dim, bias=False)
        self.k_proj = nn.Linear(spec.dim, kv, bias=False)
        self.v_proj = nn.Linear(spec.dim, kv, bias=False)
        self.o_proj = nn.Linear(spec.dim, spec.dim, bias=False)

    @torch.no_grad()
    def start_as_copy(self) -> None:
        """What a head reads it writes back, weakly: stories live from repeating names."""
        nn.init.normal_(self.v_proj.weight, std=0.04)
        value = self.v_proj.weight.view(self.kv_heads, self.head_dim, -1)
        value = value.repeat_interleave(self.heads // self.kv_heads, dim=0)
        self.o_proj.weight.add_(0.1 * value.flatten(0, 1).T)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        batch, length, dim = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        projected: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, dim))
        return projected


class Mlp(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.dim, spec.ffn, bias=False)
        self.up_proj = nn.Linear(spec.dim, spec.ffn, bias=False)
        self.down_proj = nn.Linear(spec.ffn, spec.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Block(nn.Module):
    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(spec.dim, eps=spec.eps)
        self.self_attn = Attention(spec)
        self.post_attention_layernorm = nn.RMSNorm(spec.dim, eps=spec.eps)
        self.mlp = Mlp(spec)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class StoryLlama(nn.Module):
    """Parameter names match transformers' LlamaForCausalLM without its `model.` prefix."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = nn.Embedding(spec.vocab, spec.dim)
        self.layers = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = nn.RMSNorm(spec.dim, eps=spec.eps)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                # Residual outputs start small so that depth does not grow the stream.
                out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * spec.layers) ** 0.5 if out else 0.02)
        for module in self.modules():
            if isinstance(module, Attention):
                module.start_as_copy()

    def hidden(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        cos, sin = rope_tables(self.spec, ids.shape[1], ids.device)
        x: Tensor = self.embed_tokens(ids)
        for block in self.layers:
            x = block(x, cos, sin, mask)
        out: Tensor = self.norm(x)
        return out

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return F.linear(self.hidden(ids, mask), self.embed_tokens.weight)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())
