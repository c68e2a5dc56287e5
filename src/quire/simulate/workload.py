"""Arrivals and lengths of requests, from a trace file or from distributions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quire.core.errors import ConfigError
from quire.system.records import dataclass
from quire.text.trace import read_lines

Distribution = Literal["fixed", "uniform", "lognormal"]
SIGMA = 1.0
"""Standard deviation of the logarithm of lognormal lengths; chat logs such as ShareGPT have 0.9 to
1.2."""
LONGEST = 20.0
"""Lognormal lengths are cut at this multiple of their mean."""
NO_PREFIX = -1
_PREFIX_TOKEN = 1 << 30
"""Token ids from here on belong to shared prefixes; lower ones identify the request."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival, as columns.

    Attributes:
        arrivals: float64 [N], seconds from the beginning.
        input_lens, output_lens: int64 [N], tokens.
        prefixes: int64 [N], index of the prompt's prefix; -1 for none.
        prefix_lens: int64 [N], tokens of the prefix in the prompt.
        prompts: token ids, if the trace has them.
    """

    arrivals: NDArray[np.float64]
    input_lens: NDArray[np.int64]
    output_lens: NDArray[np.int64]
    prefixes: NDArray[np.int64]
    prefix_lens: NDArray[np.int64]
    prompts: list[list[int]] | None = None

    def __len__(self) -> int:
        return len(self.arrivals)

    def prompt(self, index: int) -> list[int]:
        """Return the token ids of a request.

        The first token after the prefix is unique to the request, so every later block is, too.
        """
        if self.prompts is not None:
            return self.prompts[index]
        shared, length = int(self.prefix_lens[index]), int(self.input_lens[index])
        tokens = [_PREFIX_TOKEN + int(self.prefixes[index])] * shared
        if length > shared:
            tokens.append(index)
            tokens += [0] * (length - shared - 1)
        return tokens


def read_trace(path: Path) -> Workload:
    """Return a workload from a trace (see `text.trace`).

    Raises:
        ConfigError: the file cannot be read, or a line is wrong; the text has its number.
    """
    lines = read_lines(path)
    names: dict[int | str | None, int] = {None: NO_PREFIX}
    for line in lines:
        names.setdefault(line.prefix, len(names) - 1)
    given = [line.prompt_token_ids for line in lines if line.prompt_token_ids is not None]
    return Workload(
        arrivals=np.array([line.arrival or 0.0 for line in lines]),
        input_lens=np.array([line.length for line in lines]),
        output_lens=np.array([line.output_len for line in lines]),
        prefixes=np.array([names[line.prefix] for line in lines]),
        prefix_lens=np.array([line.shared for line in lines]),
        prompts=given or None,
    )


def generate(
    count: int,
    *,
    rate: float,
    burstiness: float = 1.0,
    input_len: int,
    output_len: int,
    lengths: Distribution = "fixed",
    num_prefixes: int = 0,
    prefix_len: int = 0,
    seed: int = 0,
) -> Workload:
    """Return a random workload; the same for the same arguments.

    Args:
        rate: requests/s; infinity sends all at once.
        burstiness: shape of the gamma distribution of the gaps; 1 is a Poisson process.
        input_len, output_len: mean tokens; `input_len` without the shared prefix.
        lengths: `uniform` is from 0.5 to 1.5 times the mean.
        num_prefixes: number of shared prefixes, of `prefix_len` tokens each.

    Raises:
        ConfigError: the rate or the burstiness is not positive.
    """
    if not (rate > 0 and 0 < burstiness < math.inf):
        raise ConfigError("--request-rate and --burstiness must be positive.")
    rng = np.random.default_rng(seed)
    arrivals = np.zeros(count)
    if math.isfinite(rate):
        gaps = rng.gamma(burstiness, 1.0 / (rate * burstiness), size=count)
        arrivals = np.cumsum(gaps) - gaps[0]
    shared = prefix_len if num_prefixes else 0
    prefixes = rng.integers(0, num_prefixes, size=count) if shared else np.full(count, NO_PREFIX)
    return Workload(
        arrivals=arrivals,
        input_lens=_lengths(rng, lengths, input_len, count) + shared,
        output_lens=_lengths(rng, lengths, output_len, count),
        prefixes=prefixes,
        prefix_lens=np.full(count, shared),
    )


def _lengths(
    rng: np.random.Generator, kind: Distribution, mean: int, count: int
) -> NDArray[np.int64]:
    if kind == "fixed":
        return np.full(count, mean, dtype=np.int64)
    if kind == "uniform":
        low = max(1, mean // 2)
        return rng.integers(low, max(low, mean + mean // 2) + 1, size=count)
    drawn = rng.lognormal(math.log(mean) - SIGMA**2 / 2, SIGMA, size=count)
    return np.clip(np.rint(drawn), 1, LONGEST * mean).astype(np.int64)
