"""Batches with recurrent states, and the arguments of the ops that use them, for tests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quire.core.dtypes import HostArray
from quire.ops.metadata import (
    AttentionMetadata,
    Convolution,
    DeltaRules,
    ScanRules,
    StateSlots,
)
from tests.arrays import array, tensor
from tests.kernels.fused_common import SEED


def seed_torch() -> None:
    """Seed the generators of torch and Python for one test."""
    print(f"QUIRE_TEST_SEED={SEED}")  # pytest shows it when the test fails
    random.seed(SEED)
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
    def rules(self) -> DeltaRules[Tensor]:
        return DeltaRules(self.rate, self.bias, self.key_heads, self.heads)


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


class Case:
    """One of the three ops with a state: its name, random arguments and the shape of its state.

    Attributes:
        rows: arguments that have a row per token.
        rules: the argument after them.
    """

    op: str
    tokens: int
    rows: list[Tensor]
    rules: Any
    shape: tuple[int, ...]

    def __init__(self, op: str, tokens: int, shape: tuple[Any, ...], dtype: torch.dtype) -> None:
        self.op, self.tokens = op, tokens
        if op == "causal_conv1d":
            channels, width, kind = shape
            x = torch.randn(tokens, (3 if kind == "gated" else 1) * channels + 5).to(dtype)
            bias = torch.randn(channels) if width % 2 else None
            self.rows = [x]
            self.rules = Convolution(torch.randn(width, channels), bias, kind, 5)
            self.shape = width - 1, channels
        elif op == "mamba2_scan":
            scan = Scan.random(tokens, shape, dtype)  # type: ignore[arg-type]
            self.rows = [scan.xbc, scan.dt]
            self.rules = ScanRules(scan.rate, scan.skip, scan.bias, scan.groups, 2, (0.1, 2.0))
            self.shape = scan.heads, scan.state_dim, scan.head_dim
        else:
            delta = Delta.random(tokens, shape, dtype, per_row=op == "kimi")  # type: ignore[arg-type]
            self.op = "gated_delta_rule"
            self.rows, self.rules = [delta.qkv, delta.gates, delta.gates], delta.rules
            self.shape = delta.heads, delta.key_dim, delta.value_dim

    def state(self, slots: int) -> Tensor:
        return torch.randn(slots, *self.shape) * 0.5

    @property
    def by_row(self) -> list[HostArray]:
        """The arguments that have a row per token."""
        return [array(x) for x in self.rows]

    def with_rows(self, rows: list[Tensor]) -> Case:
        """Return the case with other arguments that have a row per token."""
        new = copy(self)
        new.rows, new.tokens = rows, len(rows[0])
        return new

    def like(self, other: Case) -> Case:
        """Return the case with the parameters of another one."""
        return other.with_rows(self.rows)

    @staticmethod
    def of_rows(parts: list[tuple[Case, int, int]]) -> Case:
        """Return the rows [first, last) of some cases as one."""
        case = parts[0][0]
        return case.with_rows(
            [
                torch.cat([c.rows[i][first:last] for c, first, last in parts])
                for i in range(len(case.rows))
            ]
        )

    def call(self, ops: Any, meta: AttentionMetadata, state: HostArray, rows: Any) -> HostArray:
        """Return what the op of a provider of arrays computes for these rows."""
        rules = type(self.rules)(*(array(x) if isinstance(x, Tensor) else x for x in self.rules))
        y: HostArray = getattr(ops, self.op)(*rows, rules, state, meta)
        return y

    def native(self, ops: Any, meta: AttentionMetadata, state: Tensor) -> Tensor:
        return tensor(self.call(ops, meta, array(state), self.by_row))


def check_slots(states: StateSlots, query_start_loc: np.ndarray, num_slots: int) -> None:
    """Raise ValueError if a slot does not exist, or if one is written that another row needs.

    The last row of a sequence may write the slot that this sequence alone begins with.
    """
    starts, ends = query_start_loc[:-1], query_start_loc[1:]
    for name, slots in (("state_from", states.state_from), ("state_to", states.state_to)):
        wrong = slots[(slots < -1) | (slots >= num_slots)]
        if len(wrong):
            raise ValueError(f"{name} has slot {wrong[0]}; there are {num_slots}")
    if len(states.state_from) != len(starts) or len(states.state_to) != query_start_loc[-1]:
        raise ValueError(
            f"{len(states.state_from)} slots to begin with and {len(states.state_to)} to write, "
            f"for {len(starts)} sequences with {query_start_loc[-1]} rows"
        )
    written, rows = np.unique(states.state_to, return_index=True)
    if len(written) + (states.state_to == -1).sum() - (-1 in written) != len(states.state_to):
        raise ValueError("two rows write their states to one slot")
    for slot, row in zip(written.tolist(), rows.tolist(), strict=True):
        readers = np.flatnonzero((states.state_from == slot) & (starts < ends))
        if slot >= 0 and any(row != ends[i] - 1 for i in readers):
            raise ValueError(f"row {row} overwrites slot {slot}, with which a sequence begins")
