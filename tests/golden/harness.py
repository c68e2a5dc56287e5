"""Runs a decoder by hand: allocates a paged cache and feeds it prompts in chunks.

Plays the runner's part in tests of the model alone. Blocks are dealt out in random order.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from quire.checkpoint.source import resolve
from quire.core.config import SchedulerConfig
from quire.core.model_config import ModelConfig
from quire.models.decoder import Decoder
from quire.models.registry import model_config
from quire.models.weights.checkpoint import open_weights
from quire.models.weights.stored import StoredParameters
from quire.ops.interface import Ops
from quire.ops.metadata import AttentionMetadata, KVCache, LayerStates, StateSlots
from quire.runner.kv_tensors import allocate_kv_caches, allocate_states, in_layer_order
from quire.runner.model import PlannedModel
from tests.arrays import numpy_dtype
from tests.native import tensor_ops


def load_decoder(path: Path, max_len: int, ops: Ops, dtype: torch.dtype = torch.float32) -> Decoder:
    """The model in a Hugging Face folder or .gguf file, packed for `ops`."""
    source = resolve(str(path))
    model = model_config(source.config)
    stored = StoredParameters(open_weights(source), model, numpy_dtype(dtype))
    return Decoder(model, stored, max_len, ops)


def plan_of(decoder: Decoder, ops: Ops, block_size: int, kv_dtype: torch.dtype) -> PlannedModel:
    """Return the model as plans; raises ConfigError if an op has no native kernel.

    Whether it has one depends on the model alone, so that one recorded token tells.
    """
    config = decoder.config
    attention = allocate_kv_caches(ops, config, 1, block_size, numpy_dtype(kv_dtype))
    caches = in_layer_order(config, attention, allocate_states(ops, config, 1))
    return PlannedModel(decoder, ops, caches, block_size, SchedulerConfig(1, 1, 1))


def is_planned(facts: Mapping[str, object]) -> bool:
    """Return whether an engine with these facts computes by plans, of native kernels."""
    return str(facts["model"]).startswith("plan: ")


def make_metadata(
    query_lens: list[int],
    seq_lens: list[int],
    tables: list[list[int]],
    block_size: int,
    states: StateSlots | None = None,
) -> AttentionMetadata:
    """Metadata for sequences that compute their last `query_lens` of `seq_lens` tokens."""
    slots = [
        table[position // block_size] * block_size + position % block_size
        for query_len, seq_len, table in zip(query_lens, seq_lens, tables, strict=True)
        for position in range(seq_len - query_len, seq_len)
    ]
    width = max(map(len, tables))
    starts = torch.tensor([0, *query_lens]).cumsum(0)
    return AttentionMetadata(
        query_start_loc=starts.to(torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_tables=torch.tensor(
            [table + [0] * (width - len(table)) for table in tables], dtype=torch.int32
        ),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        num_seqs=len(seq_lens),
        block_size=block_size,
        states=states,
    )


def spoiled_cache(
    shape: tuple[int, int, int, int], dtype: torch.dtype, *, latent: bool = False
) -> KVCache:
    """A cache full of NaN: what lies in a block before it is written must not matter."""
    parts = 1 if latent else 2
    integers = dtype == torch.int8
    filler = 127 if integers else torch.nan
    if dtype == torch.uint8:
        slots, width = shape[:3], shape[3]
        rows = ((*slots, width // 2),) * 2 + (slots, slots, (*slots, width // 8))
        return KVCache(*(torch.full(row, 255, dtype=dtype) for row in rows))
    tensors = [torch.full(shape, filler).to(dtype) for _ in range(parts)]
    scales = []
    if integers:
        scales = [torch.full(shape[:3], torch.nan, dtype=torch.bfloat16) for _ in range(parts)]
    both = [*tensors, None] if latent else tensors
    return KVCache(*both, *scales)


def spoiled_states(config: ModelConfig, num_slots: int) -> list[LayerStates]:
    """States full of NaN, for the same reason."""
    if config.recurrent is None:
        return []
    shapes = [(num_slots, *shape) for shape in config.recurrent.state]
    found = []
    for _ in config.layers_with("recurrent"):
        conv, *matrix = (torch.full(shape, torch.nan) for shape in shapes)
        found.append(LayerStates(conv, matrix[0] if matrix else conv))
    return found


@dataclass
class Sequence:
    """Tokens, how many of them are computed, and the blocks that hold their keys.

    Attributes:
        states: slots of recurrent layers' states: of the present one, and of the next.
    """

    tokens: list[int]
    computed: int = 0
    table: list[int] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    """Of every computed token, in order."""

    @property
    def waiting(self) -> int:
        return len(self.tokens) - self.computed


class PagedModel:
    """A decoder with a cache of its own, of `dtype`.

    Native ops must leave nothing to torch: otherwise a test of the native kernels could pass
    without running them.
    """

    def __init__(
        self,
        decoder: Decoder,
        ops: Ops,
        *,
        block_size: int,
        num_blocks: int,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if ops.provider == "cpu":
            plan_of(decoder, ops, block_size, dtype)
        config = decoder.config
        latent, attention = config.latent is not None, []
        for heads, dim in map(config.kv_shape, config.kv_layers):
            shape = (num_blocks, heads, block_size, dim)
            attention.append(spoiled_cache(shape, dtype, latent=latent))
        recurrent = spoiled_states(config, 2 * num_blocks)
        self._caches = in_layer_order(config, attention, recurrent)
        self._free_states = list(range(2 * num_blocks)) if recurrent else []
        self._decoder = decoder
        self._ops = tensor_ops(ops)
        self._block_size = block_size
        self.random = random.Random(seed)
        self._free = self.random.sample(range(num_blocks), num_blocks)

    def step(self, batch: list[tuple[Sequence, int]]) -> list[Tensor]:
        """Compute the next n tokens of each sequence; the logits of each one's last token."""
        states = self._next_states(batch) if self._free_states else None
        for sequence, count in batch:
            sequence.computed += count
            while len(sequence.table) * self._block_size < sequence.computed:
                sequence.table.append(self._free.pop())
        meta = make_metadata(
            [count for _, count in batch],
            [sequence.computed for sequence, _ in batch],
            [sequence.table for sequence, _ in batch],
            self._block_size,
            states,
        )
        spans = [range(s.computed - count, s.computed) for s, count in batch]
        ids = [s.tokens[i] for (s, _), span in zip(batch, spans, strict=True) for i in span]
        positions = [i for span in spans for i in span]
        with torch.inference_mode():
            hidden = self._decoder.forward(
                self._ops, torch.tensor(ids), torch.tensor(positions), self._caches, meta
            )
            logits = self._decoder.compute_logits(self._ops, hidden)
        parts = logits.split([count for _, count in batch])
        for (sequence, _), part in zip(batch, parts, strict=True):
            sequence.logits.append(part)
        return [part[-1] for part in parts]

    def _next_states(self, batch: list[tuple[Sequence, int]]) -> StateSlots:
        """Return where the states come from, and go after the last token of each sequence."""
        starts, ends = [], []
        for sequence, count in batch:
            if not sequence.states:
                sequence.states = [self._free_states.pop(), self._free_states.pop()]
            starts.append(sequence.states[0] if sequence.computed else -1)
            sequence.states.reverse()
            ends += [-1] * (count - 1) + [sequence.states[0]]
        return StateSlots(np.array(starts, np.int32), np.array(ends, np.int64))

    def generate(self, prompts: list[list[int]], num_tokens: int) -> list[Sequence]:
        """Greedy tokens for all prompts at once; prompts in chunks of random size."""
        sequences = [Sequence(list(prompt)) for prompt in prompts]
        ends = [len(prompt) + num_tokens for prompt in prompts]
        while batch := [
            (s, self.random.randint(1, s.waiting))
            for s, end in zip(sequences, ends, strict=True)
            if len(s.tokens) < end
        ]:
            for (sequence, _), row in zip(batch, self.step(batch), strict=True):
                if sequence.waiting == 0:
                    sequence.tokens.append(int(row.argmax()))
        return sequences

    def release(self, sequences: list[Sequence]) -> None:
        """Give the blocks back, in random order."""
        for sequence in sequences:
            self._free.extend(sequence.table)
            self._free_states.extend(sequence.states)
            sequence.table, sequence.states = [], []
        self.random.shuffle(self._free)
