"""Service level objectives: latency limits of a request."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from quire.core.errors import ConfigError
from quire.system.records import dataclass

METRICS = ("ttft", "tpot", "itl", "e2e")
"""Names of a request's latencies."""
PERCENTILES = (50.0, 90.0, 99.0)
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6}
VLLM_NAMES = {"e2el": "e2e"}


@dataclass(frozen=True, slots=True)
class Slo:
    """Maximum seconds of each latency; None is no limit.

    Attributes:
        ttft: from arrival to the first token.
        tpot: mean time per output token after the first.
        itl: 99th percentile of the request's gaps between tokens.
        e2e: from arrival to the end.
    """

    ttft: float | None = None
    tpot: float | None = None
    itl: float | None = None
    e2e: float | None = None

    @classmethod
    def parse(cls, text: str) -> Slo:
        """Read "ttft=0.5,tpot=50ms": seconds, unless a unit (s, ms, us) follows.

        Raises:
            ConfigError: a name is unknown or comes twice, or a time is not positive.
        """
        return cls._from_pairs([part.partition("=") for part in text.split(",")], "--slo", _UNITS)

    @classmethod
    def parse_goodput(cls, words: Sequence[str]) -> Slo:
        """Read vLLM's `--goodput ttft:500 tpot:50`: milliseconds, unless a unit follows.

        Raises:
            ConfigError: as `parse`.
        """
        pairs = [word.partition(":") for word in words]
        return cls._from_pairs(pairs, "--goodput", {**_UNITS, "": 1e-3})

    @classmethod
    def _from_pairs(
        cls, pairs: Sequence[tuple[str, str, str]], flag: str, units: dict[str, float]
    ) -> Slo:
        limits: dict[str, float] = {}
        for word, sign, value in pairs:
            name = VLLM_NAMES.get(word.strip().lower(), word.strip().lower())
            seconds = _seconds(value, units)
            if name not in METRICS or not sign or seconds is None or name in limits:
                example = "ttft=0.5,tpot=50ms" if flag == "--slo" else "ttft:500 tpot:50"
                raise ConfigError(
                    f"{flag} has {word + sign + value!r}, which is not one of "
                    f"{', '.join(METRICS)} with a positive time, each once.",
                    fix=f"Write for example {flag} {example}.",
                    param=flag,
                )
            limits[name] = seconds
        return cls(**limits)

    def met(
        self,
        ttft: float | None = None,
        tpot: float | None = None,
        itl: float | None = None,
        e2e: float | None = None,
    ) -> bool:
        """Return whether a request met every limit. Times are in seconds; None is a time that the
        request does not have, such as the TPOT of a single token."""
        pairs = ((ttft, self.ttft), (tpot, self.tpot), (itl, self.itl), (e2e, self.e2e))
        return all(time is None or bound is None or time <= bound + 1e-9 for time, bound in pairs)

    def __str__(self) -> str:
        """Return the text that `parse` reads."""
        bounds = ((name, getattr(self, name)) for name in METRICS)
        return ",".join(f"{name}={value:g}" for name, value in bounds if value is not None)


def _seconds(text: str, units: dict[str, float]) -> float | None:
    """Return the time in seconds; None if it is not positive and finite."""
    match = re.fullmatch(r"\s*(\d+\.?\d*(?:e-?\d+)?|\.\d+)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in units:
        return None
    seconds = float(match[1]) * units[match[2]]
    return seconds if 0.0 < seconds < math.inf else None
