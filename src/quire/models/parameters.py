"""The decoder's parameters: their names and shapes follow from the `ModelConfig` alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from quire.core.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor, dtype

    from quire.ops.quantized import QuantizedWeight

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


_TABLES = ("embed.", "positions.", "token_types.")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One tensor of the decoder.

    Attributes:
        name: "embed.weight", "layers.0.attn.qkv.weight" …
        shape: row-major; [out, in] for a linear layer.
        parts: rows of each tensor that is merged into it (q, k, v; gate, up); they add up
            to shape[0].
    """

    name: str
    shape: tuple[int, ...]
    parts: tuple[int, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def may_be_quantized(self) -> bool:
        """Whether it is a linear layer's weight; tables are not, even one that is tied."""
        return len(self.shape) == 2 and not self.name.startswith(("head.", *_TABLES))


class ParameterSource(Protocol):
    """Where a decoder gets its parameters from, one at a time: the whole model is never there.

    Attributes:
        dtype: the model's, of everything that is not quantized.
    """

    dtype: dtype

    def has(self, name: str) -> bool:
        """Whether the model has the parameter `name`."""

    def parts(self, name: str) -> list[Tensor] | list[QuantizedWeight]:
        """Tensors of the model's dtype, or quantized weights, whose rows, one after the other, are
        the parameter.

        They may lie in a mapped file and must not be written to. They are good until the next
        parameter is asked for.
        """

    def tensor(self, name: str) -> Tensor:
        """The whole parameter, dense and in memory of its own."""


def parameters(config: ModelConfig) -> list[Parameter]:
    """Every parameter, in the order of the computation; a tied lm_head is not one."""
    return list(_parameters(config))


def _parameters(config: ModelConfig) -> Iterator[Parameter]:
    hidden = config.hidden_size
    vocab = config.vocab_size if config.vocab_run is None else config.vocab_run[1]
    yield _one("embed.weight", vocab, hidden)
    if config.learned_positions_offset is not None:
        rows = config.max_position_embeddings + config.learned_positions_offset
        yield _one("positions.weight", rows, hidden)
    if config.token_types:
        yield _one("token_types.weight", config.token_types, hidden)
    if config.encoder:
        yield from _norm(config, "embed_norm", hidden)
    for layer in range(config.num_hidden_layers):
        yield from _layer(config, layer)
    if not config.encoder or config.pre_norms:
        yield from _norm(config, "norm", hidden)
    if config.lm_head and not config.tie_word_embeddings:
        yield _one("lm_head.weight", vocab, hidden)
    if config.num_labels and config.encoder:
        yield from _linear("head.dense", (hidden,), hidden, bias=config.classifier_bias)
        if config.pre_norms:
            yield from _norm(config, "head.norm", hidden)
        yield from _linear("head.out", (config.num_labels,), hidden, bias=True)
    elif config.num_labels:
        yield from _linear("head.out", (config.num_labels,), hidden, bias=False)


def _layer(config: ModelConfig, index: int) -> Iterator[Parameter]:
    prefix = f"layers.{index}."
    hidden, width = config.hidden_size, config.intermediate_size
    q = config.num_attention_heads * config.head_dim
    kv = config.num_key_value_heads * config.head_dim
    if index > 0 or not config.pre_norms:
        yield from _norm(config, f"{prefix}attn_norm", hidden)
    yield from _linear(f"{prefix}attn.qkv", (q, kv, kv), hidden, config.qkv_bias)
    if config.qk_norm:
        yield _one(f"{prefix}attn.q_norm.weight", config.head_dim)
        yield _one(f"{prefix}attn.k_norm.weight", config.head_dim)
    yield from _linear(f"{prefix}attn.out", (hidden,), q, config.output_bias)
    if config.post_norms:
        yield from _norm(config, f"{prefix}attn_post_norm", hidden)
    yield from _norm(config, f"{prefix}mlp_norm", hidden)
    if config.gated_mlp:
        yield from _linear(f"{prefix}mlp.gate_up", (width, width), hidden, config.mlp_bias)
    else:
        yield from _linear(f"{prefix}mlp.up", (width,), hidden, config.mlp_bias)
    yield from _linear(f"{prefix}mlp.down", (hidden,), width, config.mlp_bias)
    if config.post_norms:
        yield from _norm(config, f"{prefix}mlp_post_norm", hidden)


def _norm(config: ModelConfig, stem: str, width: int) -> Iterator[Parameter]:
    yield _one(f"{stem}.weight", width)
    if config.norm == "layer_norm" and config.norm_bias:
        yield _one(f"{stem}.bias", width)


def _linear(stem: str, parts: tuple[int, ...], columns: int, bias: bool) -> Iterator[Parameter]:
    yield Parameter(f"{stem}.weight", (sum(parts), columns), parts)
    if bias:
        yield Parameter(f"{stem}.bias", (sum(parts),), parts)


def _one(name: str, *shape: int) -> Parameter:
    return Parameter(name, shape, (shape[0],))
