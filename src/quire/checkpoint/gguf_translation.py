"""How a tensor's name and values in GGUF become Hugging Face's, and back.

The loader of models then sees one naming, whatever the file. For architecture "llama" GGUF
stores the rows of q and k for interleaved RoPE (pairs 2i, 2i+1); Hugging Face rotates halves
(pairs i, i + head_dim/2), so these rows are put back in that order. Where Hugging Face's RoPE is
interleaved too (GLM-4, Cohere 2, ERNIE 4.5), both store the same rows. GPT-2's linear layers are
stored [out, in] in GGUF and [in, out] (`Conv1D`) by Hugging Face; they are transposed back.
Gemma's norms are stored as 1 + weight.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from quire.checkpoint.gguf import GGUFFile
from quire.checkpoint.gguf_names import MIXTRAL, NAMES, Names
from quire.core.errors import UnsupportedModelError
from quire.system.records import dataclass

Array = npt.NDArray[Any]
Reorder = Literal[
    "none",
    "halves_from_pairs",
    "transpose",
    "minus_one",
    "one_row",
    "key_heads",
    "value_heads",
    "flat",
    "log_rate",
    "grouped",
    "grouped_columns",
]


@dataclass(frozen=True, slots=True)
class Translation:
    """A tensor's Hugging Face name, and how to convert its values from GGUF's order.

    Attributes:
        heads: whose rows change places; of a delta rule, those of keys.
        keys: rows of keys in each head of a `kv_b_proj`, known only where it is written; or rows in
            front of a delta rule's values.
        served: heads of values that a head of keys serves. GGUF has the first of each, then the
            second of each …; Hugging Face those of each head together.
    """

    name: str
    reorder: Reorder = "none"
    heads: int = 0
    keys: int = 0
    served: int = 1

    def apply(self, values: Array) -> Array:
        """Return GGUF's values in Hugging Face's order."""
        if self.reorder == "transpose":
            return values.T
        if self.reorder == "minus_one":
            # Exact for what 1 + weight was rounded to: adding 1 gives the same bits again.
            return values.astype(np.float32) - np.float32(1.0)
        if self.reorder == "one_row":
            return values.reshape(1, -1)
        if self.reorder == "key_heads":
            return values.swapaxes(1, 2)
        if self.reorder == "flat":
            return values.reshape(-1)
        if self.reorder == "log_rate":
            return self._grouped(np.log(-values.astype(np.float32).reshape(-1)))
        if self.reorder == "grouped_columns":
            return np.ascontiguousarray(self._grouped(values.T).T)
        return self.apply_to_rows(values)

    def apply_to_rows(self, rows: Array) -> Array:
        """Return rows in Hugging Face's order, whatever they hold."""
        if self.reorder == "grouped":
            return self._grouped(rows)
        if self.reorder != "halves_from_pairs":
            return rows
        split = rows.reshape(self.heads, -1, 2, *rows.shape[1:])
        return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)

    def _grouped(self, rows: Array) -> Array:
        """Return rows with a delta rule's heads of values in groups."""
        values = rows[self.keys :].reshape(self.served, max(1, self.heads), -1, *rows.shape[1:])
        ordered = values.swapaxes(0, 1).reshape(-1, *rows.shape[1:])
        return np.concatenate([rows[: self.keys], ordered])

    def undo(self, values: Array) -> Array:
        """Return Hugging Face's rows, [out, in], in GGUF's order."""
        if self.reorder == "minus_one":
            return values + np.float32(1.0)
        if self.reorder == "one_row":
            return values.reshape(-1)
        if self.reorder == "halves_from_pairs":
            split = values.reshape(self.heads, 2, -1, *values.shape[1:])
            return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)
        if self.reorder in ("key_heads", "value_heads"):
            split = values.reshape(self.heads, -1, values.shape[-1])
            if self.reorder == "value_heads":
                return np.ascontiguousarray(split[:, self.keys :])
            return np.ascontiguousarray(split[:, : self.keys].swapaxes(1, 2))
        return values

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        """Return Hugging Face's shape of a GGUF shape."""
        if self.reorder == "one_row":
            return (1, *stored)
        if self.reorder in ("key_heads", "value_heads"):
            *heads, rows, columns = stored
            return (*heads, columns, rows) if self.reorder == "key_heads" else stored
        if self.reorder in ("flat", "log_rate"):
            return (math.prod(stored),)
        return tuple(reversed(stored)) if self.reorder == "transpose" else stored


_SPLIT: dict[str, Reorder] = {"attn_k_b": "key_heads", "attn_v_b": "value_heads"}
"""Stems of the two parts of `kv_b_proj`."""
_ONE_ROW = "ffn_gate_inp_shexp"
"""The stem of a vector that is a matrix of one row for Hugging Face."""
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Frequency factors (Llama 3's, LongRoPE's); `hf_config` turns them into `rope_scaling`."""


def translate(file: GGUFFile, config: Mapping[str, Any]) -> dict[str, Translation]:
    """Return GGUF's name → `Translation`, for every weight of the file.

    Raises:
        UnsupportedModelError: a tensor has no counterpart; names it.
    """
    architecture = file.metadata["general.architecture"]
    table = {}
    for name in file.tensors:
        if name in (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS) or _drafts(name, config):
            continue
        translation = translation_of(name, architecture, config)
        if translation is None:
            raise UnsupportedModelError(
                f"{file.path.name}: tensor {name!r} is not known for architecture "
                f"{architecture!r}.",
                fix="Quire would compute something else than this model; use another file.",
            )
        table[name] = translation
    return table


_IGNORED_DRAFTS = (
    "deepseek_v2", "deepseek_v3", "nemotron_h", "qwen3_5_text", "qwen3_5_moe_text",
)  # fmt: skip


def _drafts(name: str, config: Mapping[str, Any]) -> bool:
    """Return whether a tensor is of a layer behind the last one, which Quire does not compute."""
    block = re.match(r"blk\.(\d{1,6})\.", name)
    behind = block is not None and int(block[1]) >= config.get("num_hidden_layers", math.inf)
    return behind and config.get("model_type") in _IGNORED_DRAFTS


def translation_of(name: str, architecture: str, config: Mapping[str, Any]) -> Translation | None:
    """Return the translation of GGUF's tensor `name`; None if Hugging Face has no such tensor."""
    names = MIXTRAL if config.get("model_type") == "mixtral" else NAMES[architecture]
    stem, _, kind = name.rpartition(".")
    block = re.fullmatch(r"blk\.(\d{1,6})\.(\w+(?:\.\w+)?)", stem)
    part = block[2] if block else stem
    known = names.block if block else names.top
    prefix = f"{names.layers}.{int(block[1])}." if block else ""
    if names.recurrent and (found := _of_hybrid(name, names, config)):
        return found
    if whole := known.get(f"{part}.{kind}"):
        return Translation(prefix + whole)
    if part not in known or kind not in ("weight", "bias"):
        return None
    target = f"{prefix}{known[part]}.{kind}"
    if block and part in names.transposed and kind == "weight":
        return Translation(target, "transpose")
    if names.interleaved and block and part in ("attn_q", "attn_k"):
        heads = "num_attention_heads" if part == "attn_q" else "num_key_value_heads"
        return Translation(target, "halves_from_pairs", config[heads])
    if block and part in _SPLIT:
        return Translation(target, _SPLIT[part])
    if block and part == _ONE_ROW:
        return Translation(target, "one_row")
    if names.norms_plus_one and part.endswith("_norm") and kind == "weight":
        return Translation(target, "minus_one")
    return Translation(target)


_RECURRENT = re.compile(r"blk\.(\d{1,6})\.(attn_qkv|attn_gate|ffn_norm|ssm_[a-z0-9]+)(?:\.(\w+))?")
_GROUPED = ("attn_gate", "ssm_beta", "ssm_alpha", "ssm_dt")
"""Stems of a delta rule whose rows are heads of values."""


def _of_hybrid(name: str, names: Names, config: Mapping[str, Any]) -> Translation | None:
    """Return the translation of a recurrent layer's tensor that is not stored as it is."""
    block = _RECURRENT.fullmatch(name)
    if block is None:
        return None
    number, part, kind = block.groups(default="weight")  # falcon-h1's ffn_norm has no suffix
    target = names.block.get(part) or names.block.get(f"{part}.{kind}")
    if target is None:
        return None
    whole = part in ("ssm_a", "ssm_d") or f"{part}.{kind}" in names.block
    target = f"{names.layers}.{number}.{target}" + ("" if whole else f".{kind}")
    heads = config.get("linear_num_key_heads", 0)
    served = config["linear_num_value_heads"] // heads if heads else 1
    if part == "ssm_a":
        return Translation(target, "log_rate", heads, served=served)
    if part in ("ssm_norm", "ssm_d"):
        return Translation(target, "flat")
    if served == 1:
        return Translation(target)
    if part in _GROUPED:
        return Translation(target, "grouped", heads, served=served)
    if part in ("attn_qkv", "ssm_conv1d"):
        keys = 2 * heads * config["linear_key_head_dim"]
        return Translation(target, "grouped", heads, keys, served)
    return Translation(target, "grouped_columns", heads, served=served)
