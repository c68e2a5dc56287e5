"""How many drafts each request may have: the same choices as of a plain reference."""

from __future__ import annotations

from itertools import accumulate
from random import Random

import pytest

from quire.core.cost import StepCost
from quire.scheduler.budget import Scales
from quire.scheduler.depth import GRID, MEMORY, OWN_MEMORY, OWN_PRIOR, PRIOR, PROBE, STALE, WEIGHT
from quire.scheduler.running import RunningBatch
from tests.unit.scheduler.test_depth import Line, batch, choose, depth, land


class Reference:
    """The same choices, one request and one draft at a time."""

    def __init__(self, cost: StepCost, most: int, running: RunningBatch) -> None:
        self.cost, self.running, self.scales = cost, running, Scales(STALE)
        self.positions = [[*PRIOR] for _ in range(most)]
        self.own = [[0, 0] for _ in running.requests]
        self.totals = [[0, 0] for _ in running.requests]
        self.overhead = self.drafting = 0.0
        self.without = 0
        self.landed: float | None = None

    def predicted(self, drafts: int) -> float:
        rows = len(self.running)
        context = rows + int(self.running.num_computed.sum())
        attended = context + drafts * context // rows
        return self.cost.seconds(rows + drafts, rows + drafts, context, attended)

    def land(
        self, drafted: list[list[int]], accepted: list[list[int]], seconds: float, drafting: float,
        now: float,
    ) -> None:  # fmt: skip
        pause = 0.0 if self.landed is None else max(now - self.landed - seconds, 0.0)
        self.overhead += WEIGHT * (min(pause, seconds) - self.overhead)
        self.landed = now
        number = sum(map(sum, drafted))
        if len(drafted) <= 1 and seconds > 0.0:
            rows = len(self.running)
            self.scales.observe(rows + number, (seconds - drafting) / self.predicted(number))
        if len(drafted) == 1:
            self.drafting += WEIGHT * (drafting / max(1, *drafted[0]) - self.drafting)
        for counts, hits in zip(drafted, accepted, strict=True):
            for entry, (count, right) in enumerate(zip(counts, hits, strict=True)):
                self.totals[entry][0] += count
                self.totals[entry][1] += right
                for position in range(min(right + 1, count)):  # the first wrong one is the last
                    for known in (self.positions[position], self.own[entry]):
                        known[0] += 1
                        known[1] += position < right
        for known in self.positions:
            if known[0] > MEMORY:
                known[:] = known[0] / 2, known[1] / 2
        for own in self.own:
            if own[0] > OWN_MEMORY:
                own[:] = own[0] // 2, own[1] // 2

    def gain(self, row: int, position: int) -> float:
        """The probability that a draft is right, and all before it."""
        mean = sum(r for _, r in self.positions) / sum(t for t, _ in self.positions)
        tested, right = self.own[row]
        own = (right + OWN_PRIOR * mean) / (tested + OWN_PRIOR)
        rates = [min(r / t * (own / mean), 1.0) for t, r in self.positions[: position + 1]]
        return [*accumulate(rates, float.__mul__)][-1]

    def choose(self, limits: list[int], room: int) -> list[int]:
        drafts = [(row, i) for row, most in enumerate(limits) for i in range(most)]
        gains = {draft: self.gain(*draft) for draft in drafts}
        ranked = sorted(gains, key=lambda draft: -gains[draft])[:room]
        speeds = {}
        for number in [0, *(n for n in GRID if n < len(ranked)), len(ranked)]:
            rows = len(self.running)
            known = self.scales.count(rows + number)
            scale = self.scales.at(rows + number if known else rows) or 1.0
            longest = max((i + 1 for _, i in ranked[:number]), default=0)
            seconds = scale * self.predicted(number) + self.overhead + self.drafting * longest
            speeds[number] = (rows + sum(gains[d] for d in ranked[:number])) / seconds
        best = ranked[: max(speeds, key=speeds.__getitem__)]  # the fewest of equals
        if drafts:
            self.without = 0 if best else self.without + 1
            if not best and self.without % PROBE == 0:
                able = [row for row, most in enumerate(limits) if most]
                best = [(able[self.without // PROBE % len(able)], 0)][:room]
        return [sum(row == other for other, _ in best) for row in range(len(limits))]


def random_drafts(rng: Random, size: int, most: int) -> tuple[list[list[int]], list[list[int]]]:
    """Of each pass; no pass: the step had none."""
    passes = rng.choice([1, 1, 1, 1, 2, 0])
    drafted = [rng.choices(range(most + 1), k=size) for _ in range(passes)]
    return drafted, [
        [c if i % 2 else rng.randint(0, c) for i, c in enumerate(row)] for row in drafted
    ]


@pytest.mark.parametrize("seed", range(12))
def test_it_chooses_what_is_predicted_to_be_fastest(seed: int) -> None:
    rng = Random(seed)
    size, most = rng.randint(1, 6), rng.randint(1, 4)
    weights = [rng.choice([0.1, 1.0, 4.0]), rng.random(), *rng.choices([0.0, 0.01], k=2)]
    cost = Line(rng.choice([5.0, 50.0]), weights)
    learned, running = depth(cost, most), batch(size)
    reference, now = Reference(cost, most, running), 0.0
    for _ in range(60):
        drafted, accepted = random_drafts(rng, size, most)
        seconds = rng.choice([0.0, 10.0, 60.0])  # 0: not known
        drafting = rng.choice([0.0, 2.0]) if drafted and seconds else 0.0
        now += seconds + rng.choice([0.0, 3.0, 1e3])
        land(learned, running, drafted or None, accepted or None, seconds, drafting, now)
        reference.land(drafted, accepted, seconds, drafting, now)
        limits, room = rng.choices(range(most + 1), k=size), rng.randint(0, 3 * size)
        running.version += 1
        running.limit[:] = running.num_tokens + 1 + limits
        assert choose(learned, running, size + room) == reference.choose(limits, room)
        requests = running.requests
        assert [[r.drafts_tested, r.drafts_right] for r in requests] == reference.own
        assert learned._tested == [known[0] for known in reference.positions]
        assert learned._right == [known[1] for known in reference.positions]
    totals = [[r.num_draft_tokens, r.num_accepted_tokens] for r in running.requests]
    assert totals == reference.totals
