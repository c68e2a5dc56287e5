"""Routing rules of other servers, from their descriptions, to compare the router with."""

from __future__ import annotations

from collections.abc import Sequence

from quire.core.messages import SchedulerStats, StepOutputs
from quire.routing.router import Prompt
from quire.simulate.router import Counting


class SGLangRule(Counting):
    """SGLang's `cache_aware` policy: the longest match in what was sent to each worker.

    A match below half of the prompt goes to the worker with the smallest tree. If the loads differ
    by more than 32 requests and by more than half, the shortest queue is chosen instead.
    """

    THRESHOLD, ABSOLUTE, RELATIVE = 0.5, 32, 1.5

    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas)
        self._trees: list[set[bytes]] = [set() for _ in range(num_replicas)]

    def choose(self, prompt: Prompt, among: int | None = None) -> int:
        least, most = min(self.loads), max(self.loads)
        if most - least > self.ABSOLUTE and most > self.RELATIVE * least:
            return self.loads.index(least)
        matches = [_matched(prompt.hashes, tree) for tree in self._trees]
        best = max(range(len(matches)), key=matches.__getitem__)
        if matches[best] > self.THRESHOLD * max(1, len(prompt.hashes)):
            return best
        sizes = [len(tree) for tree in self._trees]
        return sizes.index(min(sizes))

    def add(self, replica: int, request_id: str, prompt: Prompt) -> None:
        super().add(replica, request_id, prompt)
        self._trees[replica].update(prompt.hashes)


class VLLMRule(Counting):
    """vLLM's internal balancer: the least of its score of load; it does not know prefixes.

    score = max(sent, waiting + running) + 6 · waiting · max(0, KV use − 0.5)
    """

    def __init__(self, num_replicas: int) -> None:
        super().__init__(num_replicas)
        self._states: list[SchedulerStats | None] = [None] * num_replicas

    def choose(self, prompt: Prompt, among: int | None = None) -> int:
        scores = [self._score(replica) for replica in range(len(self.loads))]
        return scores.index(min(scores))

    def note(self, replica: int, step: StepOutputs) -> None:
        super().note(replica, step)
        self._states[replica] = step.stats or self._states[replica]

    def _score(self, replica: int) -> float:
        state, sent = self._states[replica], float(self.loads[replica])
        if state is None:
            return sent
        use = state.kv_blocks_used / state.kv_blocks_total
        load = max(sent, state.num_waiting + state.num_running)
        return load + 6.0 * state.num_waiting * max(0.0, use - 0.5)


def _matched(hashes: Sequence[bytes], tree: set[bytes]) -> int:
    return next((i for i, block in enumerate(hashes) if block not in tree), len(hashes))
