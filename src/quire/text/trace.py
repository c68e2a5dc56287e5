"""Traces: files of requests with arrival times and lengths, for simulation and benchmarks.

JSON Lines has the fields of `TraceLine`. CSV (`.csv`) has them as columns, or the columns of
published traces: `TIMESTAMP,ContextTokens,GeneratedTokens` (Azure) and
`Timestamp,Request tokens,Response tokens` (BurstGPT).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from quire.core.errors import ConfigError
from quire.text.files import read_text

_COLUMNS = {
    "timestamp": "arrival",
    "contexttokens": "input_len",
    "request tokens": "input_len",
    "generatedtokens": "output_len",
    "response tokens": "output_len",
}
"""Columns of published traces, in lower case → fields."""


class TraceLine(msgspec.Struct, forbid_unknown_fields=True):
    """One request of a trace."""

    output_len: int
    arrival: float | None = None
    """Seconds since any moment. If no line has it, requests arrive as fast as clients send."""
    input_len: int | None = None
    prompt_token_ids: list[int] | None = None
    """Instead of `input_len`."""
    prefix: int | str | None = None
    """A name shared by prompts with the same beginning."""
    prefix_len: int | None = None
    """Tokens of this beginning; the whole prompt if unset."""

    @property
    def length(self) -> int:
        """Return the number of prompt tokens."""
        return len(self.prompt_token_ids or ()) if self.input_len is None else self.input_len

    @property
    def shared(self) -> int:
        """Return the number of shared prompt tokens."""
        if self.prefix is None:
            return 0
        return self.length if self.prefix_len is None else min(self.length, self.prefix_len)


def read_lines(path: Path) -> list[TraceLine]:
    """Return a trace's requests by arrival, the first at 0; in the file's order without times.

    Raises:
        ConfigError: the file cannot be read, or a line is wrong; the error names it.
    """
    text = read_text(path, f"The trace {path}")
    decode = _csv_lines if path.suffix.lower() == ".csv" else _json_lines
    lines = list(decode(text, path))
    if not lines:
        raise ConfigError(f"The trace {path} has no requests.")
    for name in ("prompt_token_ids", "arrival"):
        given = sum(getattr(line, name) is not None for line in lines)
        if 0 < given < len(lines):
            raise ConfigError(f"Some lines of the trace {path} have {name}, others none.")
    if lines[0].arrival is None:
        return lines
    lines.sort(key=_arrival)
    start = _arrival(lines[0])
    for line in lines:
        line.arrival = _arrival(line) - start
    return lines


def _arrival(line: TraceLine) -> float:
    return line.arrival or 0.0


def _json_lines(text: str, path: Path) -> Iterator[TraceLine]:
    decoder = msgspec.json.Decoder(TraceLine)
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield _check(decoder.decode(line))
            except ValueError as error:  # msgspec's errors are of this class, too
                raise _wrong(number, path, error) from None


def _csv_lines(text: str, path: Path) -> Iterator[TraceLine]:
    reader = csv.DictReader(io.StringIO(text))
    names = {name: _field(name) for name in reader.fieldnames or ()}
    if missing := {"input_len", "output_len"} - set(names.values()):
        raise ConfigError(
            f"The trace {path} has no column {', '.join(sorted(missing))}.",
            fix="Its first line names the columns: arrival,input_len,output_len.",
        )
    known = {field.name for field in msgspec.structs.fields(TraceLine)}
    for cells in reader:
        values: dict[str, Any] = {
            names[name]: cell for name, cell in cells.items() if name in names and cell
        }
        try:
            if "arrival" in names.values():
                values["arrival"] = _seconds(values.get("arrival", ""))
            kept = {name: value for name, value in values.items() if name in known}
            yield _check(msgspec.convert(kept, TraceLine, strict=False))
        except ValueError as error:
            raise _wrong(reader.line_num, path, error) from None


def _field(column: str) -> str:
    """Return the field of a column. Unknown columns are ignored."""
    name = column.strip().lower()
    return _COLUMNS.get(name, name)


def _seconds(text: str) -> float:
    """Return the seconds in a text: a number, or a date and time."""
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text.strip()).timestamp()


def _check(line: TraceLine) -> TraceLine:
    if (line.input_len is None) == (line.prompt_token_ids is None):
        raise ValueError("it needs either input_len or prompt_token_ids")
    if line.output_len < 1 or line.length < 1:
        raise ValueError("a request has at least one token of input and one of output")
    if line.arrival is not None and not math.isfinite(line.arrival):
        raise ValueError("arrival must be finite")
    if line.prefix_len is not None and (line.prefix is None or line.prefix_len < 0):
        raise ValueError("prefix_len needs a prefix, and must not be negative")
    return line


def _wrong(number: int, path: Path, error: ValueError) -> ConfigError:
    return ConfigError(f"Line {number} of the trace {path} is wrong: {error}.")
