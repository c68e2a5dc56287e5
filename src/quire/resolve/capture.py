"""`--compilation-config`: which decode steps a GPU replays from graphs."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from quire.core.config import DeviceType
from quire.resolve.arguments import EngineArgs
from quire.resolve.flag_values import read_json, read_object, wrong_flag

FLAG = "--compilation-config"
_PARAM = "compilation_config"
_error = partial(wrong_flag, _PARAM)
_EXAMPLE = '{"cudagraph_capture_sizes": [1, 2, 4, 8]}'
_MOST_ROWS = 256
"""Rows of the largest step that is recorded by default; launches do not bound larger ones."""


class _Wanted(msgspec.Struct, frozen=True):
    cudagraph_mode: Literal[
        "NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"
    ] | None = None  # fmt: skip
    cudagraph_capture_sizes: tuple[int, ...] | None = None
    max_cudagraph_capture_size: int | None = None


def capture_sizes(args: EngineArgs, device: DeviceType, notes: list[str]) -> tuple[int, ...]:
    """Return the rows of decode steps that are replayed from graphs, in ascending order.

    Only GPUs with Triton's kernels have graphs.

    Raises:
        ConfigError: `--compilation-config` is wrong.
    """
    wanted = _read(args.compilation_config, notes)
    if device != "cuda" or args.ops != "triton":
        if wanted != _Wanted():
            notes.append(f"{FLAG} has no effect: only Triton's kernels on a GPU have graphs.")
        return ()
    if args.enforce_eager or wanted.cudagraph_mode == "NONE":
        return ()
    sizes = wanted.cudagraph_capture_sizes
    most = wanted.max_cudagraph_capture_size or (
        _MOST_ROWS if sizes is None else max(sizes, default=0)
    )
    if sizes is None:
        sizes = (1, 2, 4, *range(8, most + 1, 8))
    return tuple(sorted({n for n in sizes if n <= min(most, args.max_num_seqs)}))


def _read(text: str | None, notes: list[str]) -> _Wanted:
    if text is None:
        return _Wanted()
    if text.strip().isdecimal():  # vLLM's -O3
        text = f'{{"level": {text}}}'
    fields = read_object(_PARAM, text, _EXAMPLE)
    mode = fields.get("cudagraph_mode")
    if isinstance(mode, str):
        fields["cudagraph_mode"] = mode.upper()
    wanted = read_json(_PARAM, msgspec.json.encode(fields).decode(), _Wanted, _EXAMPLE)
    sizes = wanted.cudagraph_capture_sizes
    if sizes and min(sizes) < 1:
        raise _error(f"cudagraph_capture_sizes is {[*sizes]}; it must hold numbers above 0.")
    most = wanted.max_cudagraph_capture_size
    if most is not None and most < 1:
        raise _error(f"max_cudagraph_capture_size is {most}; it must be above 0.")
    if others := sorted(fields.keys() - {*_Wanted.__struct_fields__}):
        notes.append(f"{FLAG}: no effect of {', '.join(others)}: nothing is compiled.")
    return wanted
