"""Random evidence for `quire explain`: `python -m tests.fuzz.evidence --count 100000`.

No window, however absurd, makes a report print an impossible figure, or raises an error.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import msgspec

from quire.core.op_profile import OpProfile, OpTime
from quire.explain.analyse import explain
from quire.explain.evidence import CORE, OFFLINE, Evidence, Platform, Window
from quire.explain.host import HostUse
from quire.explain.limits import TYPES, Limits
from quire.explain.report import Report
from quire.explain.surroundings import Surroundings
from quire.explain.text import render
from quire.explain.whatif import explained
from quire.metrics.requests import RecordedRequest, RequestMix
from quire.metrics.times import PARTS
from tests.unit.explain.made import healthy, profile

UNBOUND = profile(("linear", "layers.0.mlp.up", 9.0, 10.0, 40.0), model_seconds=9.1)
BASES = [
    healthy(args=args, ops=UNBOUND)
    for args in (
        {"num_threads": 1, "max_num_seqs": 1},
        {"enforce_eager": True, "dtype": "float32"},
        {"async_scheduling": True, "enable_prefix_caching": False, "tokenizer_pool_size": 2},
        {"quantization": "int8", "kv_cache_dtype": "int8", "num_gpu_blocks_override": 200},
        {"quantization": "fp8"},
        {"speculative_config": '{"method": "suffix", "num_speculative_tokens": 8}'},
        {"tensor_parallel_size": 2},
        {
            "enable_lora": True,
            "max_num_batched_tokens": 64,
            "kv_offloading_dir": "/x",
            "kv_offloading_size": 1.0,
            "cpu_offload_gb": 0.1,
        },
    )
]
PERCENT = re.compile(r"([+-]?)([\d,.]+)$")
"""The number in front of a percent sign."""
ODD = (0.0, -1.0, 1e-9, 0.5, 1.0, 7.0, 25.6, 1e6, 5e-324, 1e308, math.nan, math.inf, -math.inf)
REPLAYED = 0.001
"""Share of the windows whose changes are simulated, too: one takes as long as 300 others."""

SLOW = 2.0
"""CPU seconds that no window should take on a quiet machine."""
RENDERED = 0.2
"""Share of the reports that are printed whole; of the others, all sentences are checked."""
HALVED = 0.2
"""Share of the windows that have halves, which are judged like whole ones."""


class Draw:
    """Random plain data; every second case has only usual figures."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._odd = random.choice((0.0, 0.0, 0.2, 0.8))

    def amount(self) -> float:
        r = self._random
        return r.choice(ODD) if r.random() < self._odd else r.uniform(0.0, 60.0)

    def share(self) -> float:
        return self.amount() if self._random.random() < self._odd else self._random.random()

    def whole(self) -> int:
        r = self._random
        return r.randint(-(2**70), 2**70) if r.random() < self._odd else r.randint(-10, 1000)

    def rate(self) -> float:
        return (
            self.amount()
            if self._random.random() < self._odd
            else 10 ** self._random.uniform(0, 15)
        )

    def maybe(self, make: Callable[[], Any]) -> Any:
        return make() if self._random.random() < 0.7 else None

    def some(self, make: Callable[[], Any], most: int = 3) -> list[Any]:
        return [make() for _ in range(self._random.randint(0, most))]

    def filled(self, struct: type[Any], **given: Any) -> Any:
        """Return a struct with random numbers in its numeric fields."""
        kinds: dict[Any, Callable[[], Any]] = {
            "float": self.amount, "int": self.whole, "bool": lambda: self._random.random() < 0.5
        }  # fmt: skip
        fields = {name: kinds[kind]() for name, kind in _fields(struct) if kind in kinds}
        return struct(**fields | given)

    def window(self) -> Window:
        names = [name for name in PARTS if self._random.random() < 0.7] + ["model"]
        gauges = {name: self.share() for name in ("kv_share", "kv_peak")}
        sizes = self.some(lambda: (self.amount(), self.whole()))
        window: Window = self.filled(
            Window,
            parts={name: self.amount() / 10 for name in names},
            step_sizes=sizes,
            step_seconds=[self.amount() for _ in sizes],
            step_rest=[self.amount() for _ in sizes],
            mix=self.filled(RequestMix),
            arrivals=self.some(lambda: self.filled(RecordedRequest), 12),
            **gauges,
        )
        return window

    def limits(self) -> Limits:
        def rates() -> dict[int, float]:
            return {
                self._random.randint(0, 8): self.rate() for _ in range(self._random.randint(1, 3))
            }

        def of_types() -> dict[str, dict[int, float]]:
            return {name: rates() for name in TYPES if self._random.random() < 0.9}

        points = [*zip(sorted(self.some(self.amount)), self.some(self.amount), strict=False)]
        reached = (rates(), of_types(), of_types(), rates(), {"bfloat16": tuple(points)})
        reached = reached if self._random.random() < 0.5 else ()
        return Limits("x", self.whole(), rates(), of_types(), 0.0, *reached)

    def operations(self) -> OpProfile:
        names = ("linear", "paged_attention", "logits", "lora")
        profiled: OpProfile = self.filled(
            OpProfile,
            ops=self.some(
                lambda: self.filled(
                    OpTime,
                    name=self._random.choice(names),
                    module="layers.0.x",
                    isa="x",
                    dtype=self._random.choice(TYPES),
                )
            ),
            rank_waits=self.some(self.amount),
        )
        return profiled

    def evidence(self) -> Evidence:
        r = self._random
        isas = ("", "avx2", "torch avx2")
        halves = [self.window()] * 2 if r.random() < HALVED else []
        return msgspec.structs.replace(
            r.choice(BASES),
            window=self.window(),
            cores=self.whole(),
            offline=r.random() < 0.3,
            ops=self.maybe(lambda: r.choice((UNBOUND, self.operations()))),
            limits=self.maybe(self.limits),
            host=self.maybe(lambda: self.filled(HostUse)),
            surroundings=self.maybe(
                lambda: self.filled(Surroundings, huge_pages=r.choice(("never", "")))
            ),
            platform=self.maybe(
                lambda: self.filled(Platform, isa=r.choice(isas), best_isa=r.choice(isas))
            ),
            halves=halves,
            tls=r.random() < 0.3,
        )


@cache
def _fields(struct: type[Any]) -> list[tuple[str, str]]:
    """Return the fields of a struct with the names of their types."""
    fields = msgspec.structs.fields(struct)
    return [(f.name, f.type.__name__) for f in fields if isinstance(f.type, type)]


def case(seed: int) -> Report:
    """Explain one random window, and check the report."""
    random = Random(seed)
    evidence = Draw(random).evidence()
    report = explained(evidence) if random.random() < REPLAYED else explain(evidence)
    sentences = [report.verdict.text, *(f.text for f in report.causes), *report.notes]
    text = render(report) if random.random() < RENDERED else "\n".join(sentences)
    check(report, text, max(0, evidence.window.computed_tokens))
    return report


def check(report: Report, text: str, tokens: int) -> None:
    """Check that every figure of a report on so many computed tokens is possible."""
    assert all(math.isfinite(n) for n in numbers(msgspec.to_builtins(report)))
    shares = [*report.split.values(), report.verdict.share, *(f.share for f in report.causes)]
    shares += [line.share for line in report.ops] + [line.of_limit or 0.0 for line in report.ops]
    shares += [finding.confidence for finding in report.causes]
    assert min(shares) >= 0.0
    assert max(shares) <= 1.0 + 1e-9
    core = OFFLINE if report.offline else CORE
    assert sum(report.split.get(name, 0.0) for name in core) <= 1.0 + 1e-9
    assert sum(line.share for line in report.ops) <= 1.0 + 1e-9
    most_gain = min(tokens + 1.0, 1e6)  # see `Case.most_gain`
    for change in report.changes:
        assert 0.0 <= change.estimated_gain <= most_gain * (1.0 + 1e-9)
        assert 0.0 < change.uncertainty <= 1.0
    assert not re.search(r"\b(nan|inf)\b", text)
    for before in text.split("%")[:-1]:
        if found := PERCENT.search(before[-20:]):
            most = 100 * most_gain if found[1] == "+" else 100
            assert float(found[2].replace(",", "")) <= most + 0.5, text


def numbers(value: Any) -> Iterator[float]:
    """Yield every number in plain data."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
        elif isinstance(item, int | float):
            yield item


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    begin, causes, slow = time.monotonic(), set(), []
    for seed in range(args.seed, args.seed + args.count):
        started = time.process_time()
        try:
            causes |= {finding.cause for finding in case(seed).causes}
        except Exception as error:
            raise SystemExit(f"window {seed}: {type(error).__name__}: {error}") from error
        if (took := time.process_time() - started) > SLOW:
            slow.append(f"{seed} ({took:.1f} s)")
    seconds = time.monotonic() - begin
    print(
        f"{args.count:,} windows in {seconds:.0f} s, slow: {', '.join(slow) or 'none'}; "
        f"{len(causes)} causes named: {sorted(causes)}"
    )


if __name__ == "__main__":
    main()
