"""GGUF's names for configuration and tensors, translated to Hugging Face's.

The loader of models then sees one naming, whatever the file. For architecture "llama" GGUF
stores the rows of q and k for interleaved RoPE (pairs 2i, 2i+1); Hugging Face rotates halves
(pairs i, i + head_dim/2), so these rows are put back in that order. GPT-2's linear layers are
stored [out, in] in GGUF and [in, out] (`Conv1D`) by Hugging Face; they are transposed back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf import GGUFFile
from quire.core.errors import UnsupportedModelError

Array = npt.NDArray[Any]

_LLAMA_TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LLAMA_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GPT2_TOP = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
}
_GPT2_BLOCK = {
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_GPT2_CONV1D = {"attn_qkv", "attn_output", "ffn_up", "ffn_down"}
_ROPE_FACTORS = "rope_freqs.weight"
"""Llama 3's frequency factors; `hf_config` turns them into `rope_scaling`."""


@dataclass(frozen=True, slots=True)
class Translation:
    """A tensor's Hugging Face name and how its values get from GGUF's order to that one's."""

    name: str
    reorder: Literal["none", "halves_from_pairs", "transpose"] = "none"
    heads: int = 0

    def apply(self, values: Array) -> Array:
        if self.reorder == "transpose":
            return values.T
        if self.reorder == "halves_from_pairs":
            split = values.reshape(self.heads, -1, 2, *values.shape[1:])
            return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)
        return values

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(reversed(stored)) if self.reorder == "transpose" else stored


def translate(file: GGUFFile, config: dict[str, Any]) -> dict[str, Translation]:
    """GGUF's name → `Translation`, for every tensor of the file that is a weight.

    Raises:
        UnsupportedModelError: a tensor has no counterpart; names it.
    """
    gpt2 = config["model_type"] == "gpt2"
    permuted = {}
    if file.metadata["general.architecture"] == "llama":
        permuted = {
            "attn_q": config["num_attention_heads"],
            "attn_k": config["num_key_value_heads"],
        }
    table = {}
    for name in file.tensors:
        if name == _ROPE_FACTORS:
            continue
        stem, _, kind = name.rpartition(".")
        block = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        part = block[2] if block else stem
        known = (
            (_GPT2_BLOCK if gpt2 else _LLAMA_BLOCK)
            if block
            else (_GPT2_TOP if gpt2 else _LLAMA_TOP)
        )
        if part not in known or kind not in ("weight", "bias"):
            raise UnsupportedModelError(
                f"{file.path.name}: tensor {name!r} is not known for architecture "
                f"{file.metadata['general.architecture']!r}.",
                fix="Quire would compute something else than this model; use another file.",
            )
        layers = "transformer.h" if gpt2 else "model.layers"
        prefix = f"{layers}.{int(block[1])}." if block else ""
        target = f"{prefix}{known[part]}.{kind}"
        if gpt2 and part in _GPT2_CONV1D and kind == "weight":
            table[name] = Translation(target, "transpose")
        elif block and part in permuted:
            table[name] = Translation(target, "halves_from_pairs", permuted[part])
        else:
            table[name] = Translation(target)
    return table
