"""A bar: its subject, its bound, and whether a measurement meets it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal, Self

from quire.bench.results.report import Row
from quire.system.records import dataclass


@dataclass(frozen=True, slots=True)
class Setup:
    """A model as an engine runs it: a preset, or a folder of weights."""

    model: str
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    dtype: str = "bfloat16"

    def fields(self) -> dict[str, Any]:
        """Return fields of `EngineArgs`."""
        kv_cache_dtype = self.kv_cache_dtype or "auto"
        return {
            "model": self.model,
            "load_format": "dummy",
            "dtype": self.dtype,
            "quantization": self.quantization,
            "kv_cache_dtype": kv_cache_dtype,
        }

    def __str__(self) -> str:
        kv = [f"{self.kv_cache_dtype} KV"] if self.kv_cache_dtype else []
        return " + ".join([self.quantization or self.dtype, *kv])


@dataclass(frozen=True, slots=True)
class Load:
    """`count` prompts of `input_len` random tokens at once, `output_len` tokens for each."""

    count: int
    input_len: int
    output_len: int

    @property
    def max_len(self) -> int:
        """Return the tokens of a sequence."""
        return self.input_len + self.output_len

    def num_blocks(self, block_size: int = 16) -> int:
        """Return the blocks of a KV cache that just holds the load."""
        return self.count * (-(-self.max_len // block_size) + 1) + 1


@dataclass(frozen=True, slots=True)
class Floor:
    """The share of the memory floor that decoding reaches (`bench latency`)."""

    setup: Setup
    load: Load


@dataclass(frozen=True, slots=True)
class Against:
    """Speed relative to the best of some peers on the same work (`bench compare`).

    Attributes:
        task: "prefill" and "decode" are rates of one stream, "batch" is all output over the time.
        peers: names in `compare.PEERS`, each with its setup.
        as_time: ratio of times (less is better) instead of rates.
        alone: memory holds one engine only, so that each turn starts its engine anew.
    """

    setup: Setup
    load: Load
    task: Literal["prefill", "decode", "batch"]
    peers: tuple[tuple[str, Setup], ...]
    as_time: bool = False
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from process start to first token, with weights on disk (`bench startup`).

    Attributes:
        model: a preset; a checkpoint is made of it.
        cold: without cached packed weights.
    """

    model: str
    cold: bool


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak bytes in memory above weights and KV cache (`bench latency`).

    Attributes:
        stored: of the model as files, with its tokenizer.
    """

    setup: Setup
    load: Load
    stored: bool = False


Subject = Floor | Against | Start | Memory
Unit = Literal["share", "times", "seconds", "bytes"]


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of the table.

    Attributes:
        name: its name in `--rows`.
        what: its description.
        bound: the lower limit of the median, or with `at_most` the upper one; None if the line is
            for information only.
    """

    name: str
    what: str
    bound: float | None
    unit: Unit
    subject: Subject
    at_most: bool = False

    def met(self, value: float) -> bool | None:
        """Return whether a median meets the bound; None without a bound."""
        if self.bound is None:
            return None
        return value <= self.bound if self.at_most else value >= self.bound

    @property
    def many_tokens(self) -> bool:
        """Return whether a step computes many tokens, so that arithmetic may limit it."""
        match self.subject:
            case Against(task=task):
                return task != "decode"
            case Floor(load=load):
                return load.count > 1
            case _:
                return False


@dataclass(frozen=True, slots=True)
class Seen:
    """A measurement: median, lowest and highest repetition.

    Attributes:
        facts: further fields of the row.
    """

    value: float
    low: float
    high: float
    repetitions: int
    facts: Row = field(default_factory=dict)

    @classmethod
    def of(cls, values: Sequence[float], facts: Row) -> Self:
        """Return the measurement of one number per repetition."""
        return cls(statistics.median(values), min(values), max(values), len(values), facts)


def row_of(bar: Bar, seen: Seen, isa: str) -> Row:
    """Return a row without its circumstances and without `where` the time goes.

    Args:
        isa: instruction set of the native kernels.
    """
    return {
        "row": bar.name,
        "what": bar.what,
        "isa": isa,
        "unit": bar.unit,
        "bar": bar.bound,
        "at_most": bar.at_most,
        "value": seen.value,
        "met": bar.met(seen.value),
        **seen.facts,
        "where": None,
        "repetitions": seen.repetitions,
        "min": {"value": seen.low},
        "max": {"value": seen.high},
    }
