"""Batches with recurrent states, and the arguments of the ops that use them, for tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.ops.metadata import AttentionMetadata, StateSlots
from tests.kernels.fused_common import SEED


def seed_torch() -> None:
    """Seed torch's generator for one test."""
    print(f"QUIRE_TEST_SEED={SEED}")  # pytest shows it when the test fails
    torch.manual_seed(SEED)


class Part(NamedTuple):
    """A sequence's rows in a step: `stores` has the slot of each row that is stored."""

    rows: int
    source: int
    stores: dict[int, int]


def metadata(parts: Iterable[Part]) -> AttentionMetadata:
    """Return a step's metadata; no op of recurrent layers reads what attention needs alone."""
    parts = list(parts)
    starts = [0, *itertools.accumulate(part.rows for part in parts)]
    state_to = np.full(starts[-1], -1, np.int64)
    for start, part in zip(starts, parts, strict=False):
        for row, slot in part.stores.items():
            state_to[start + row % part.rows] = slot
    states = StateSlots(np.array([part.source for part in parts], np.int32), state_to)
    return AttentionMetadata(
        query_start_loc=np.array(starts, np.int32),
        seq_lens=np.array([part.rows for part in parts], np.int32),
        block_tables=np.zeros((len(parts), 1), np.int32),
        slot_mapping=np.zeros(starts[-1], np.int64),
        num_seqs=len(parts),
        block_size=16,
        states=states,
    )


def one(rows: int, source: int = -1, target: int = 0) -> AttentionMetadata:
    """Return the metadata of one sequence, whose last state goes to `target`."""
    return metadata([Part(rows, source, {-1: target})])


class Delta(NamedTuple):
    """What `gated_delta_rule` takes of random tokens; `decay` and `beta` are parts of `gates`."""

    qkv: Tensor
    gates: Tensor
    rate: Tensor
    bias: Tensor
    key_heads: int
    heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def random(
        cls,
        tokens: int,
        shape: tuple[int, int, int, int],
        dtype: torch.dtype = torch.float32,
        per_row: bool = False,
    ) -> Delta:
        """`shape`: key heads, heads, key_dim, value_dim; `per_row`: Kimi's decay."""
        key_heads, heads, key_dim, value_dim = shape
        decays = heads * (key_dim if per_row else 1)
        columns = 2 * key_heads * key_dim + heads * value_dim
        return cls(
            torch.randn(tokens, columns).to(dtype),
            torch.randn(tokens, decays + heads + 3).to(dtype),
            torch.rand(heads) + 0.01, torch.randn(decays) - 1, *shape,
        )  # fmt: skip

    def state(self, slots: int) -> Tensor:
        return torch.randn(slots, self.heads, self.key_dim, self.value_dim) * 0.3

    @property
    def firsts(self) -> tuple[int, int]:
        """First columns of the decay and of beta."""
        return self.heads, 0


class Scan(NamedTuple):
    """What `mamba2_scan` takes of random tokens."""

    xbc: Tensor
    dt: Tensor
    rate: Tensor
    skip: Tensor
    bias: Tensor
    groups: int
    heads: int
    state_dim: int
    head_dim: int

    @classmethod
    def random(
        cls, tokens: int, shape: tuple[int, int, int, int], dtype: torch.dtype = torch.float32
    ) -> Scan:
        """`shape`: groups, heads, state_dim, head_dim."""
        groups, heads, state_dim, head_dim = shape
        columns = heads * head_dim + 2 * groups * state_dim
        return cls(
            torch.randn(tokens, columns).to(dtype), torch.randn(tokens, heads + 2).to(dtype),
            torch.rand(heads) + 0.1, torch.randn(heads), torch.randn(heads) - 1, *shape,
        )  # fmt: skip

    def state(self, slots: int) -> Tensor:
        return torch.randn(slots, self.heads, self.state_dim, self.head_dim)
