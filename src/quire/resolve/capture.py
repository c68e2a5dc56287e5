"""`--compilation-config`: which decode steps a GPU replays from graphs, and what torch compiles."""

from __future__ import annotations

from functools import partial
from typing import Literal

import msgspec

from quire.core.config import DeviceType
from quire.core.registry import did_you_mean
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
    mode: Literal[
        0, 1, 2, 3, "NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "VLLM_COMPILE"
    ] | None = None  # fmt: skip
    backend: str | None = None

    @property
    def graphs(self) -> bool:
        """Return whether a field is about graphs."""
        return not (
            self.cudagraph_mode is None
            and self.cudagraph_capture_sizes is None
            and self.max_cudagraph_capture_size is None
        )


_STOCK = (1, "STOCK_TORCH_COMPILE")
_NEVER = (None, 0, "NONE")
_BACKENDS = ("inductor", "eager", "aot_eager")


def capture_sizes(args: EngineArgs, device: DeviceType, notes: list[str]) -> tuple[int, ...]:
    """Return the rows of decode steps that are replayed from graphs, in ascending order.

    Only GPUs with Triton's kernels have graphs.

    Raises:
        ConfigError: `--compilation-config` is wrong.
    """
    wanted = _read(args.compilation_config, notes)
    if device != "cuda" or args.ops != "triton":
        if wanted.graphs:
            notes.append(f"{FLAG} has no effect: only Triton's kernels on a GPU have graphs.")
        return ()
    if args.enforce_eager or wanted.cudagraph_mode == "NONE":
        return ()
    sizes = wanted.cudagraph_capture_sizes
    most = wanted.max_cudagraph_capture_size or (
        _MOST_ROWS if sizes is None else max(sizes, default=0)
    )
    if sizes is None:
        sizes = (1, 2, 4, *range(8, most + 1, 8), args.max_num_seqs)  # the last: of a full batch
    return tuple(sorted({n for n in sizes if n <= min(most, args.max_num_seqs)}))


def compile_backend(args: EngineArgs, notes: list[str]) -> str | None:
    """Return the backend of `torch.compile` for prompts, or None: mode STOCK_TORCH_COMPILE turns it
    on.

    Only the reference ops are compiled: the other providers' kernels are fused by hand.

    Raises:
        ConfigError: `--compilation-config` is wrong.
    """
    wanted = _read(args.compilation_config, [])
    mode = wanted.mode
    if mode in _NEVER:
        return None
    if mode not in _STOCK:
        notes.append(f"{FLAG}: no effect of mode {mode}: Quire knows NONE and {_STOCK[1]}.")
        return None
    if args.ops != "reference" or args.enforce_eager:
        why = "--enforce-eager is set" if args.enforce_eager else "only --ops reference is compiled"
        notes.append(f"{FLAG}: no effect of mode {mode}: {why}.")
        return None
    backend = wanted.backend or _BACKENDS[0]
    if backend not in _BACKENDS:
        raise _error(f"backend is {backend!r}; {did_you_mean(backend, _BACKENDS)}")
    notes.append(
        f"{FLAG}: the first prompt waits for torch.compile ({backend}). Bits of prompts may depend "
        "on what else is in the batch."
    )
    return backend


def _read(text: str | None, notes: list[str]) -> _Wanted:
    if text is None:
        return _Wanted()
    if text.strip().isdecimal():  # vLLM's -O3
        text = f'{{"level": {text}}}'
    fields = read_object(_PARAM, text, _EXAMPLE)
    for name in ("cudagraph_mode", "mode"):
        if isinstance(mode := fields.get(name), str):
            fields[name] = mode.upper()
    wanted = read_json(_PARAM, msgspec.json.encode(fields).decode(), _Wanted, _EXAMPLE)
    sizes = wanted.cudagraph_capture_sizes
    if sizes and min(sizes) < 1:
        raise _error(f"cudagraph_capture_sizes is {[*sizes]}; it must hold numbers above 0.")
    most = wanted.max_cudagraph_capture_size
    if most is not None and most < 1:
        raise _error(f"max_cudagraph_capture_size is {most}; it must be above 0.")
    if others := sorted(fields.keys() - {*_Wanted.__struct_fields__}):
        notes.append(f"{FLAG}: no effect of {', '.join(others)}.")
    return wanted
