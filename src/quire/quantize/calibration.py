"""Calibration: what each linear layer is fed, one decoder layer at a time, on sample texts.

Everything is computed in float32, by the model's own layers on the reference operations, except
that a product is one call, and one that is watched adds to its statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from quire.core.config import ModelConfig
from quire.core.dtypes import FLOAT32, HostArray
from quire.core.quantized import QuantizedWeight
from quire.layers.embedding import Embedding
from quire.layers.layer import Tokens
from quire.models.builder import Builder
from quire.models.layout import Layout
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache
from quire.ops.paged_attention import KEY_COLUMNS
from quire.ops.reference import LinearWeight, activation, dense_weight
from quire.ops.torch_arrays import array

_BATCH_TOKENS = 2048
"""Computed at once: of a wide feed-forward some tens of MB."""


@dataclass(slots=True)
class InputStatistics:
    """Of the inputs x of a linear layer, over all tokens.

    Attributes:
        hessian: Σ x xᵀ, float32 [K, K].
        magnitude: Σ |x|, float32 [K].
        tokens: how many.
    """

    hessian: Tensor
    magnitude: Tensor
    tokens: int = 0

    @classmethod
    def of_width(cls, columns: int) -> InputStatistics:
        return cls(torch.zeros(columns, columns), torch.zeros(columns))

    def add(self, x: Tensor) -> None:
        """Count the rows of float32 [T, K]."""
        self.hessian.addmm_(x.t(), x)
        self.magnitude += x.abs().sum(0)
        self.tokens += len(x)


@dataclass(slots=True)
class _Batch:
    """Sequences that are computed together; `hidden` is what the next layer gets."""

    positions: Tensor
    meta: AttentionMetadata
    hidden: Tensor


class Calibration:
    """Sample texts on their way through the decoder.

    Memory: their hidden states, float32 [tokens, hidden], and the one layer at hand.
    """

    def __init__(
        self, config: ModelConfig, samples: Sequence[Sequence[int]], embedding: Embedding
    ) -> None:
        """Begin with the embeddings of `samples`, token ids."""
        self._config = config
        self._layout = Layout(config)
        self._longest = max(map(len, samples))
        self._batches = [self._begin(batch, embedding) for batch in _batches(samples)]

    def watch(self, index: int, parameters: Mapping[str, Tensor]) -> dict[str, InputStatistics]:
        """Compute layer `index` with its float32 `parameters`; the samples stay before it.

        Returns:
            parameter of each linear weight → what it is fed.
        """
        builder = self._builder(parameters)
        layer = self._layer(builder, index)
        found = {
            name: InputStatistics.of_width(packed.shape[1])
            for name, packed in builder.linear_weights.items()
        }
        watched = {id(packed): found[name] for name, packed in builder.linear_weights.items()}
        ops = _table(watched)
        for batch in self._batches:
            layer(ops, batch)
        return found

    def advance(self, index: int, parameters: Mapping[str, Tensor]) -> None:
        """Take the samples through layer `index` with its float32 `parameters`."""
        layer = self._layer(self._builder(parameters), index)
        ops = _table({})
        for batch in self._batches:
            batch.hidden = layer(ops, batch)

    def watch_head(self, parameters: Mapping[str, Tensor]) -> InputStatistics:
        """What the output projection is fed; `parameters` are the last norm's."""
        norm = self._builder(parameters).norm(self._layout.norm)
        found = InputStatistics.of_width(self._config.hidden_size)
        for batch in self._batches:
            found.add(norm.forward(_table({}), batch.hidden))
        return found

    def _builder(self, parameters: Mapping[str, Tensor]) -> Builder:
        return Builder(self._config, _Given(parameters), self._longest, _table({}))

    def _begin(self, samples: Sequence[Sequence[int]], embedding: Embedding) -> _Batch:
        ids = torch.tensor([token for sample in samples for token in sample])
        lengths = torch.tensor([len(sample) for sample in samples])
        positions = torch.cat([torch.arange(len(sample)) for sample in samples])
        blocks = -(-int(lengths.max()) // KEY_COLUMNS)
        tables = torch.arange(len(samples) * blocks).view(len(samples), blocks)
        first = (tables[:, 0] * KEY_COLUMNS).repeat_interleave(lengths)
        meta = AttentionMetadata(
            query_start_loc=F.pad(lengths.cumsum(0), (1, 0)).int(),
            seq_lens=lengths.int(),
            block_tables=tables.int(),
            slot_mapping=first + positions,
            num_seqs=len(samples),
            block_size=KEY_COLUMNS,
        )
        return _Batch(positions, meta, embedding.forward(_table({}), ids, positions))

    def _layer(self, builder: Builder, index: int) -> Callable[[Ops, _Batch], Tensor]:
        """Build a layer; calling it gives what the next one gets."""
        config, spec = self._config, self._layout.layers[index]
        first, layer = builder.norm(spec[0].before), builder.layer(spec, None)

        def forward(ops: Ops, batch: _Batch) -> Tensor:
            blocks = batch.meta.block_tables.numel()
            shape = blocks, config.num_key_value_heads, batch.meta.block_size, config.head_dim
            cache = KVCache(torch.zeros(shape), torch.zeros(shape))
            tokens = Tokens(batch.positions, batch.meta)
            x = first.forward(ops, batch.hidden)
            residual: Tensor = layer.forward(ops, x, batch.hidden, cache, tokens)[1]
            return residual

        return forward


class _Given:
    """A `ParameterSource` of what is at hand."""

    dtype = FLOAT32

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters

    def has(self, name: str) -> bool:
        return name in self._parameters

    def parts(self, name: str) -> list[HostArray] | list[QuantizedWeight]:
        return [array(self._parameters[name])]

    def tensor(self, name: str) -> HostArray:
        return array(self._parameters[name])


def _batches(samples: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    batches: list[list[Sequence[int]]] = []
    tokens = _BATCH_TOKENS
    for sample in samples:
        if tokens + len(sample) > _BATCH_TOKENS:
            batches.append([])
            tokens = 0
        batches[-1].append(sample)
        tokens += len(sample)
    return batches


def _table(watched: Mapping[int, InputStatistics]) -> Ops:
    def linear(x: Tensor, packed: LinearWeight) -> Tensor:
        if (statistics := watched.get(id(packed))) is not None:
            statistics.add(x)
        weight = dense_weight(packed)
        product = F.linear(x, weight.weight, weight.bias)
        return product if weight.epilogue == "none" else activation(product, weight.epilogue)

    def embedding(ids: Tensor, table: Tensor) -> Tensor:
        return F.embedding(ids, table).float()

    return Ops().using(linear=linear, embedding=embedding)
