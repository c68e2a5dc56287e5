"""How a tensor's values in GGUF become Hugging Face's, and back.

The loader of models then sees one naming, whatever the file. For architecture "llama" GGUF
stores the rows of q and k for interleaved RoPE (pairs 2i, 2i+1); Hugging Face rotates halves
(pairs i, i + head_dim/2), so these rows are put back in that order. Where Hugging Face's RoPE is
interleaved too (GLM-4, Cohere 2, ERNIE 4.5), both store the same rows. GPT-2's linear layers are
stored [out, in] in GGUF and [in, out] (`Conv1D`) by Hugging Face; they are transposed back.
Gemma's norms are stored as 1 + weight.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

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


ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""Frequency factors (Llama 3's, LongRoPE's); `hf_config` turns them into `rope_scaling`."""
FACTORS = (ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS)
