"""Whom each step serves, with how many tokens: the same as by plain rules, one row at a time.

Without a prefix cache, so that free blocks can be counted from the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from quire.core.batch import SchedulerOutput
from quire.core.config import CacheConfig, SchedulerConfig
from quire.core.request import Request
from quire.kv.prefix import NO_BLOCK
from quire.scheduler.queue import REACH
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import request, sampled
from tests.unit.scheduler.test_adapters import adapted


@dataclass
class Row:
    """A running request: the blocks at the start of its table, `slid` of them given back."""

    request: Request
    tokens: int
    computed: int
    resumes_at: int
    ends: bool
    blocks: int
    slid: int


class Rules:
    """What a scheduler has to do next, from its queues and tables."""

    def __init__(self, s: Scheduler) -> None:
        self.s, self.config, self.size = s, s.config, s.kv.block_size
        running = s.running
        self.rows = [
            Row(
                request,
                int(running.num_tokens[i]),
                int(running.num_computed[i]),
                int(min(request.num_tokens - 1, running.num_computed[i])),
                bool(running.num_tokens[i] >= request.max_total_tokens),
                len(s.kv.tables[request.request_id]),
                s.kv.tables[request.request_id].count(NO_BLOCK),
            )
            for i, request in enumerate(running.requests)
        ]
        self.queue = sorted(s.waiting.requests(), key=lambda request: request.order)
        self.victims: list[Request] = []

    @property
    def free(self) -> int:
        return self.s.kv.pool.num_blocks - sum(row.blocks - row.slid for row in self.rows)

    def most(self, tokens: int) -> int:
        return self.s.kv.most_blocks(tokens)

    def reserved(self) -> int:
        """The blocks that running requests still need for their present tokens."""
        total = 0
        for row in self.rows:
            missing = max(0, -(-row.tokens // self.size) - row.blocks)
            total += min(missing, max(0, self.most(10**9) - (row.blocks - row.slid)))
        return total

    def fits(self, request: Request) -> bool:
        return self.most(request.num_tokens) + self.reserved() <= self.free

    def one_too_many(self, request: Request) -> bool:
        most = self.config.max_loras
        adapters = {row.request.lora_int_id for row in self.rows} - {0}
        wanted = adapters | {request.lora_int_id} - {0}
        return most is not None and len(wanted) > max(most, len(adapters))

    def preempt_last(self) -> None:
        self.victims.append(self.rows.pop().request)

    def make_way(self) -> None:
        """Under the priority policy, preempt for the first in the queue, if that helps."""
        if self.config.policy != "priority" or not self.queue:
            return
        first, all_rows, before = self.queue[0], self.rows.copy(), self.victims.copy()
        while (
            len(self.rows) >= self.config.max_num_seqs
            or not self.fits(first)
            or self.one_too_many(first)
        ):
            if not self.rows or self.rows[-1].request.order[0] <= first.order[0]:
                self.rows, self.victims = all_rows, before
                return
            self.preempt_last()

    def share(self, budget: int) -> list[int]:
        wanted = [0 if row.ends else row.tokens - row.computed for row in self.rows]
        given = [min(count, 1) for count in wanted]
        left = budget - sum(given)
        for i, count in enumerate(wanted):
            more = min(count - given[i], left)
            given[i] += more
            left -= more
        return given

    def step(self) -> dict[str, int]:
        """The tokens of each request in the next step, in order."""
        self.make_way()
        enforced = len(self.victims)
        for row in self.rows:
            if self.s.kv.window is not None:
                first = (row.resumes_at - self.s.kv.window + 1) // self.size
                row.slid = max(row.slid, first)
        while True:
            given = self.share(self.config.max_num_batched_tokens)
            ends = [row.computed + count for row, count in zip(self.rows, given, strict=True)]
            blocks = [-(-end // self.size) for end in ends]
            pairs = list(zip(self.rows, blocks, strict=True))
            if sum(max(0, count - row.blocks) for row, count in pairs) <= self.free:
                break
            self.preempt_last()
        for row, count in pairs:
            row.blocks = max(row.blocks, count)
        if len(self.victims) == enforced:
            given += self.admit(self.config.max_num_batched_tokens - sum(given))
        served = sorted(zip(self.rows, given, strict=True), key=lambda pair: pair[0].request.order)
        return {row.request.request_id: count for row, count in served if count}

    def admit(self, budget: int) -> list[int]:
        given: list[int] = []
        passed: Request | None = None
        for new in sorted(self.queue + self.victims, key=lambda waiting: waiting.order):
            if passed and new.order >= (passed.order[0], passed.order[1] + REACH):
                break
            if len(self.rows) >= self.config.max_num_seqs or not budget:
                break
            if self.one_too_many(new):
                passed = passed or new
                continue
            tokens = new.num_tokens
            in_flight = any(new in flight.requests for flight in self.s._steps.in_flight)
            if new in self.victims or in_flight or not self.fits(new):
                break
            if self.config.whole_prompts and tokens > budget:
                break
            given.append(min(tokens, budget))
            budget -= given[-1]
            blocks = -(-given[-1] // self.size)
            self.rows.append(Row(new, tokens, given[-1], 0, False, blocks, 0))
        return given


class Tables:
    """The block tables as the executor learns them, by request and position."""

    def __init__(self) -> None:
        self.blocks: dict[str, dict[int, int]] = {}

    def follow(self, batch: SchedulerOutput) -> None:
        for name in batch.removed:
            self.blocks.pop(name)
        for entry, position, block in batch.new_blocks.T.tolist():
            self.blocks.setdefault(batch.request_ids[entry], {})[position] = block

    def check(self, s: Scheduler) -> None:
        assert {*self.blocks} == {*s.running.request_ids}
        for name, blocks in self.blocks.items():
            for position, block in enumerate(s.kv.tables[name]):
                assert block in (NO_BLOCK, blocks[position])


def check_step(s: Scheduler, tables: Tables) -> SchedulerOutput:
    rules = Rules(s)
    expected = rules.step()
    batch = s.schedule(0.0)
    tables.follow(batch)
    tables.check(s)
    assert batch.num_passes == 1
    given = zip(batch.request_ids, batch.num_scheduled_tokens.tolist(), strict=True)
    assert dict(given) == expected
    assert list(batch.request_ids) == list(expected)
    assert {*s.running.requests} == {row.request for row in rules.rows}
    for row in rules.rows:
        table = s.kv.tables[row.request.request_id]
        assert (len(table), table.count(NO_BLOCK)) == (row.blocks, max(0, row.slid))
    assert {r.request_id for r in rules.victims} <= {*batch.removed}
    s.check_integrity()
    return batch


@pytest.mark.parametrize("seed", range(40))
def test_every_step_follows_the_rules(seed: int) -> None:
    rng = Random(seed)
    seats, size = rng.randint(1, 6), rng.choice([2, 4, 8])
    num_blocks = rng.randint(4, 24)
    limits = SchedulerConfig(
        1000,
        seats,
        rng.randint(seats, 30),
        rng.choice(["fcfs", "priority"]),
        whole_prompts=seed % 8 == 0,
        max_loras=rng.choice([None, None, 1, 2]),
    )
    window = rng.choice([None, rng.randint(1, 20), rng.randint(1, 8)])
    s = Scheduler(limits, CacheConfig(size, num_blocks, False, sliding_window=window))
    tables = Tables()
    depth, in_flight, number = rng.choice([1, 2, 4]), list[SchedulerOutput](), 0
    for _ in range(40):
        for _ in range(rng.choice([0, 0, 1, 3])):
            length, most = rng.randint(1, num_blocks * size // 2), rng.randint(1, 20)
            length *= rng.choice([1, 1, 3])
            if s.kv.most_blocks(length + most) > num_blocks:
                continue
            adapter = rng.choice([0, 1, 2, 3]) if limits.max_loras else 0
            priority = rng.randint(0, 2)
            new = request(f"r{number}", length, max_tokens=most, priority=priority)
            if adapter:
                new.inputs = adapted("r", adapter, priority=priority).inputs
            s.add(new)
            number += 1
        if s.requests and rng.random() < 0.1:
            s.abort([rng.choice(list(s.requests))])
        in_flight.append(check_step(s, tables))
        if len(in_flight) >= depth:
            batch = in_flight.pop(0)
            s.update(batch, sampled(s, batch, 5), 0.0)
