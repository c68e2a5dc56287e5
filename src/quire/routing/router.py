"""The router: sends a request where its first token costs least, for it and for others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple, Protocol

from quire.core.config import HashAlgo
from quire.core.cost import StepCost
from quire.core.messages import AddRequest, CoreOutput, RequestEvent, StepOutputs
from quire.core.request import Request
from quire.kv.hashing import BlockHasher
from quire.routing.cache_map import CacheMap
from quire.routing.load import Load, Sent

MEMORY = 64
"""Ended requests in the running mean of an answer's length."""
FEW = 8
"""So many bits of a mask are found faster one by one."""


class Prompt(NamedTuple):
    """What a router knows about a request: hashes of its full blocks, and its tokens."""

    hashes: Sequence[bytes]
    num_tokens: int


class Router(Protocol):
    """Chooses replicas. The caller reports what it sent, and each step of every replica."""

    def choose(self, prompt: Prompt, among: int | None = None) -> int:
        """Return a replica for a request; change nothing.

        Args:
            among: bit mask of the replicas to choose from; None means all.
        """

    def add(self, replica: int, request_id: str, prompt: Prompt) -> None:
        """Note that a request was sent to a replica."""

    def remove(self, request_id: str) -> None:
        """Note that a request has left its replica; ignore unknown ids."""

    def note(self, replica: int, step: StepOutputs) -> None:
        """Take the outputs of a replica's step."""


class Prompts:
    """Makes the prompts that the router compares, with the replicas' own hashes."""

    def __init__(self, block_size: int, algo: HashAlgo, seed: int) -> None:
        self._hasher = BlockHasher(block_size, algo, seed)

    def of(self, message: AddRequest) -> Prompt:
        """Return the hashes and the length of a request's prompt."""
        request = Request(
            message.request_id,
            message.prompt_token_ids,
            message.sampling_params,
            arrival_time=message.arrival_time,
            max_model_len=1,
            inputs=message.inputs,
        )
        return Prompt(self._hasher.extend(request), request.num_tokens)


class CacheAwareRouter:
    """Sends each request where its first token costs the fewest seconds, for it and for others.

        predicted seconds = wait of the replica + prefill of the tokens that it has not cached
                          + what its answer adds to the answers there

    All come from the cost model, so no weight has to be tuned: a conversation stays with its
    prefix until waiting costs more than computing it again. Equal predictions go to the replica
    with the fewest requests, then to the one with the longest prefix, then to the one with the
    fewest cached blocks, then to the first.
    """

    def __init__(
        self, num_replicas: int, cost: StepCost, *, block_size: int, max_num_seqs: int
    ) -> None:
        self._cost = cost
        self._block_size = block_size
        self._cache = CacheMap(num_replicas)
        self._loads = [Load(cost, max_num_seqs) for _ in range(num_replicas)]
        self._own_waits = [load.wait() for load in self._loads]
        self._waits = [0.0] * num_replicas
        """Seconds, with the present length of answers."""
        self._sent: dict[str, Sent] = {}
        self._answer_tokens, self._ended = 0.0, 0

    def choose(self, prompt: Prompt, among: int | None = None) -> int:
        """See `Router`."""
        hashes, waits, cache = prompt.hashes, self._waits, self._cache
        left = cache.everyone if among is None else among
        rest: Iterable[int] = range(len(waits))
        best, chosen, cached = inf, -1, len(hashes)
        while left:
            cached = cache.num_blocks(hashes, left, cached)
            group = cache.holders(hashes[cached - 1]) & left if cached else left
            left ^= group
            own = self._prefill_seconds(prompt.num_tokens, cached)
            deepest = _members(group, rest)
            soonest = min([waits[replica] for replica in deepest])
            if own + soonest <= best:
                first = min([r for r in deepest if waits[r] == soonest], key=self._rank)
                if own + soonest < best or self._unfinished(first) < self._unfinished(chosen):
                    best, chosen = own + soonest, first
            # The others compute no fewer tokens, so only those that wait less may be better.
            limit = best - own
            rest = [r for r in rest if waits[r] <= limit and left >> r & 1]
            left = sum([1 << replica for replica in rest])
        assert chosen >= 0, "a router needs a replica to choose"
        return chosen

    def num_uncached(self, prompt: Prompt, among: int) -> int:
        """Return the fewest prompt tokens that one of these replicas has to compute."""
        return self._left(prompt.num_tokens, self._cache.num_blocks(prompt.hashes, among))

    def add(self, replica: int, request_id: str, prompt: Prompt) -> None:
        """See `Router`."""
        cached = self._cache.num_blocks(prompt.hashes, 1 << replica)
        expected = prompt.hashes[cached:]
        sent = Sent(replica, prompt.num_tokens, self._left(prompt.num_tokens, cached), expected)
        self._sent[request_id] = sent
        self._cache.expect(replica, expected)
        self._loads[replica].add(sent)
        self._update(replica)

    def remove(self, request_id: str) -> None:
        """See `Router`."""
        sent = self._sent.pop(request_id, None)
        if sent is not None:
            self._cache.unexpect(sent.replica, sent.expected)
            self._loads[sent.replica].remove(sent)
            self._update(sent.replica)

    def note(self, replica: int, step: StepOutputs) -> None:
        """See `Router`."""
        load = self._loads[replica]
        if step.blocks is not None:
            self._cache.report(replica, step.blocks)
        for event in step.events:
            self._note_event(load, event)
        for output in step.each():
            self._note_output(load, output)
        if step.stats is not None:
            load.note(step.stats)
        self._update(replica)

    def forget(self, replica: int) -> None:
        """Forget the cache and the requests of a replica that was lost."""
        for request_id in [name for name, sent in self._sent.items() if sent.replica == replica]:
            self.remove(request_id)
        self._cache.forget(replica)

    def _update(self, replica: int) -> None:
        wait = self._own_waits[replica] = self._loads[replica].wait()
        self._waits[replica] = wait.seconds(self._answer_tokens)

    def _prefill_seconds(self, num_tokens: int, num_blocks: int) -> float:
        new = self._left(num_tokens, num_blocks)
        pairs = new * (num_tokens - new) + new * (new + 1) // 2
        return self._cost.seconds(new, 1, num_tokens, pairs)

    def _left(self, num_tokens: int, num_blocks: int) -> int:
        """Return how many tokens are left to compute; at least the last one is."""
        return max(1, num_tokens - num_blocks * self._block_size)

    def _unfinished(self, replica: int) -> int:
        return self._loads[replica].unfinished

    def _rank(self, replica: int) -> tuple[int, int, int]:
        return self._loads[replica].unfinished, self._cache.num_held(replica), replica

    def _note_event(self, load: Load, event: RequestEvent) -> None:
        sent = self._sent.get(event.request_id)
        if sent is None or not sent.new_tokens:
            return
        if event.kind == "admitted":
            load.progress(sent, max(1, sent.num_tokens - event.tokens))
        elif event.kind == "prefill":
            load.progress(sent, max(1, sent.new_tokens - event.tokens))

    def _note_output(self, load: Load, output: CoreOutput) -> None:
        sent = self._sent.get(output.request_id)
        if sent is None:
            return
        sent.answer_tokens += len(output.new_token_ids)
        if sent.new_tokens:
            load.progress(sent, 0)
            self._cache.unexpect(sent.replica, sent.expected)
            sent.expected = ()
        if output.finish_reason is not None:
            self.remove(output.request_id)
            self._ended = min(self._ended + 1, MEMORY)
            self._answer_tokens += (sent.answer_tokens - self._answer_tokens) / self._ended
            self._waits = [wait.seconds(self._answer_tokens) for wait in self._own_waits]


def _members(mask: int, among: Iterable[int]) -> list[int]:
    """Return the numbers of `among` whose bit is set, in ascending order."""
    if mask.bit_count() > FEW:
        return [number for number in among if mask >> number & 1]
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found
