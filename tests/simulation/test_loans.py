"""Replicas that lend each other KV blocks, killed at random moments.

The cores, their pools, `Halves` and `Ledger` are real. The executors' slots are one array, as the
shared memory is. Each slot betrays what was written over it, so a block that is used again while
somebody reads it ends the test.
"""

from __future__ import annotations

from collections import defaultdict, deque
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from quire.core.config import SchedulerConfig
from quire.core.kv_sharing import SharedKV
from quire.core.messages import AbortRequests, AddRequest, CoreInput, StepOutputs
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.frontend.client.halves import Halves
from quire.routing.ledger import Ledger
from quire.simulate.clock import VirtualClock
from tests.simulation.executor import ModelledExecutor, modelled_tokens
from tests.unit.engine.fakes import engine_config

SIZE, STRIDE, VOCAB, TOKENS = 8, 14, 97, 9
PREFILL, COUNT = 1, 3


class Machine:
    """The replicas, the messages on their way, and the requests of a random load."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.slots = np.zeros(COUNT * STRIDE * SIZE, dtype=np.uint64)
        self.cores: list[EngineCore | None] = [self.core(rank) for rank in range(COUNT)]
        self.inbox: list[deque[CoreInput]] = [deque() for _ in range(COUNT)]
        self.outbox: list[deque[StepOutputs]] = [deque() for _ in range(COUNT)]
        self.ledger = Ledger(SharedKV("", STRIDE, 0, COUNT), self.send)
        self.halves = Halves(PREFILL, COUNT, self.ledger)
        self.states: dict[str, Any] = {}
        self.tokens: defaultdict[str, list[int]] = defaultdict(list)
        self.unfinished: dict[str, Any] = {}
        self.killed = self.copied = 0

    def core(self, rank: int) -> EngineCore:
        clock = VirtualClock()
        executor = ModelledExecutor(
            num_blocks=STRIDE, block_size=SIZE, vocab_size=VOCAB, clock=clock
        )
        executor._slots = self.slots
        config = engine_config(
            num_blocks=STRIDE,
            block_size=SIZE,
            scheduler=SchedulerConfig(1000, 4, 32),
            shared_kv=SharedKV("", STRIDE, rank, COUNT),
        )
        return EngineCore(config, executor, clock)

    def send(self, replica: int, message: CoreInput) -> None:
        if self.cores[replica] is not None:
            self.inbox[replica].append(message)

    def ask(self, name: str) -> None:
        """Begin a request whose prompt may share its beginning with others."""
        rng, draw = Random(self.rng.randrange(3)), self.rng
        prompt = [rng.randrange(VOCAB) for _ in range(draw.choice([0, 8, 24]))]
        prompt += [draw.randrange(VOCAB) for _ in range(draw.randint(1, 40))]
        params = SamplingParams(max_tokens=TOKENS, temperature=0.0, ignore_eos=True)
        children = [
            AddRequest(f"{name}.{i}", pack_tokens(prompt), params, 0.0)
            for i in range(draw.choice([1, 1, 2]))
        ]
        request = SimpleNamespace(children=children)
        state = SimpleNamespace(request=request, replica=0, prompt=prompt, wants=True)
        self.unfinished |= {child.request_id: state for child in children}
        self.begin(state)

    def begin(self, state: Any) -> None:
        for child in state.request.children:
            self.tokens[child.request_id].clear()
        ready = [rank for rank, core in enumerate(self.cores) if core is not None]
        answers = [rank for rank in ready if rank >= PREFILL]
        if 0 in ready and answers:
            state.replica = 0
            self.send(0, self.halves.begin(state))
        elif ready:
            state.replica = self.rng.choice(answers or ready)
            for child in state.request.children:
                self.send(state.replica, child)
        else:
            state.replica = -1

    def read(self, rank: int, step: StepOutputs) -> None:
        self.ledger.end(rank, step.returned)
        for state, ended in self.halves.take(step):
            self.copied += ended.lent is not None and ended.lent.copied
            answers = [r for r in range(PREFILL, COUNT) if self.cores[r] is not None]
            state.replica = self.rng.choice(answers or [state.replica])
            for message in self.halves.go_on(state.replica, ended):
                self.send(state.replica, message)
        for output in step.each():
            self.tokens[output.request_id] += output.new_token_ids
            if output.finish_reason is None:
                continue
            if (state := self.unfinished.pop(output.request_id, None)) is not None:
                found = self.tokens[output.request_id]
                assert found == modelled_tokens(state.prompt, TOKENS, VOCAB)

    def abort(self) -> None:
        state = self.rng.choice([*self.unfinished.values()])
        names = [child.request_id for child in state.request.children]
        for name in names:
            self.unfinished.pop(name, None)
        if state.replica >= 0:
            self.send(state.replica, AbortRequests(self.halves.abort(names)))

    def kill(self, rank: int) -> None:
        self.killed += 1
        self.cores[rank] = None
        self.inbox[rank].clear()
        self.outbox[rank].clear()
        self.halves.forget(rank)
        lost = {id(s): s for s in self.unfinished.values() if s.replica == rank}
        for state in lost.values():
            self.begin(state)

    def restart(self, rank: int) -> None:
        self.cores[rank] = self.core(rank)
        self.ledger.restore(rank)
        waiting = {id(s): s for s in self.unfinished.values() if s.replica < 0}
        for state in waiting.values():
            self.begin(state)

    def turn(self, rank: int) -> None:
        """Let a replica take its messages and compute a step, or read what it said."""
        core = self.cores[rank]
        if core is None:
            self.restart(rank)
            return
        for _ in range(self.rng.randint(0, len(self.inbox[rank]))):
            if isinstance(said := core.handle(self.inbox[rank].popleft()), StepOutputs):
                self.outbox[rank].append(said)
        if (step := core.step()) is not None:
            self.outbox[rank].append(step)
        core.scheduler.check_integrity()
        for _ in range(self.rng.randint(0, len(self.outbox[rank]))):
            self.read(rank, self.outbox[rank].popleft())

    def run(self, requests: int, kills: int) -> None:
        asked = 0
        while asked < requests or self.unfinished or any(self.inbox) or any(self.outbox):
            rank, chance = self.rng.randrange(COUNT), self.rng.random()
            if asked < requests and chance < 0.1:
                self.ask(str(asked := asked + 1))
            elif self.unfinished and chance < 0.11:
                self.abort()
            elif self.killed < kills and chance < 0.13 and self.cores[rank] is not None:
                self.kill(rank)
            else:
                self.turn(rank)
        assert len(self.ledger) == 0
        for core in filter(None, self.cores):
            core.scheduler.check_integrity()
            assert core.scheduler.kv.pool.num_used == 0


@pytest.mark.parametrize("seed", range(4))
def test_nothing_wrong_and_nothing_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.engine.handoff.POLL_SECONDS", 0.0)
    machine = Machine(seed)
    machine.run(requests=40, kills=12)
    assert machine.killed
    assert machine.ledger.num_lent > 20
    assert machine.copied > 2
