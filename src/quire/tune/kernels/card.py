"""`quire tune kernels` on a GPU: the sizes of Triton's kernels that change no bit.

Each value is tried once before anything is timed. It is left out if the card cannot run it, or if
one bit of a result differs from the kernel's own sizes. Calls are timed by the card's clock, from
graphs: a launch from Python takes longer than most kernels.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from quire.bench.kernels import attention as attention_cases
from quire.bench.kernels import experts as expert_cases
from quire.bench.kernels import recurrent as recurrent_cases
from quire.bench.kernels.case import Call, Variant
from quire.bench.kernels.cases import Setting
from quire.bench.kernels.rounded import rounded
from quire.core.dtypes import dtype_of
from quire.core.model_config import ModelConfig
from quire.ops.interface import Ops
from quire.ops.triton.tuning import (
    CardTuning,
    Chosen,
    HeadTuning,
    StateTuning,
    TileTuning,
    TunedHeads,
    TunedStates,
    TunedTile,
    read,
)
from quire.ops.tuning import Shape, load
from quire.ops.weights import LinearWeight
from quire.system.records import dataclass
from quire.tune.kernels.search import Found, Subject, Values
from quire.tune.kernels.subjects import Product, Task, layers, remembering

if TYPE_CHECKING:
    from quire.ops.torch_ops.devices import TorchAccelerator

ROWS = [1, 16, 64, 255, 2048]
"""Ends of ranges: tiles change at 16 and 64, and coded weights are dequantized from 256 rows on."""
UNCACHED = 150 << 20
"""Bytes of which no card's cache holds twice as many."""
_ANY_ROWS = 1 << 40
_LEAST_TURNS, _MOST_TURNS = 8, 256
_CACHES = 32
_WAVES = (-1, 1, 2, 4, 8)
_FIELDS: dict[str, Sequence[int]] = {
    "columns": (64, 128, 256), "warps": (4, 8), "stages": (2, 3, 4, 5),
}  # fmt: skip
EXPERT_TILES = (16, 32, 64, 128)
"""Rows of tiles that `linear.tile` chooses for experts."""


@dataclass(frozen=True)
class Bench:
    """A card, and what its launches read.

    Attributes:
        refusals: errors of values that the card cannot run.
    """

    ops: Ops[Any]
    device: TorchAccelerator
    chosen: Chosen
    empty: CardTuning
    refusals: tuple[type[Exception], ...]

    def known(self) -> CardTuning:
        """Return what was tuned for this card before."""
        return load(self.empty, read)


def open_bench() -> Bench:
    """Return the first GPU that this process may use.

    Raises:
        ConfigError: there is none, or it cannot run the kernels.
    """
    from quire.ops.providers import load_ops, open_device
    from quire.ops.triton import launch, tuning

    device: Any = open_device("cuda")
    ops = load_ops("triton", device=device)
    chosen, empty = tuning.chosen(device.torch), tuning.untuned(device.torch)
    return Bench(ops, device, chosen, empty, launch.REFUSALS)


class CardClock:
    """Times a call by the card's clock, under the values in force.

    Args:
        state: returns the values in force; each has a graph of its own.
        seconds: time of a repetition; at least one graph.
        turns: calls of a graph, which rotate through the arguments.
    """

    def __init__(
        self,
        device: TorchAccelerator,
        state: Callable[[], object],
        call: Call,
        seconds: float,
        turns: int,
    ) -> None:
        self.samples: list[float] = []
        self._device, self._state, self._call, self._turns = device, state, call, turns
        self._graphs: dict[object, Callable[[], object]] = {}
        self._count = 1
        self.repeat()
        self._count = max(1, min(1000, int(seconds / turns / max(self.samples[0], 1e-9))))
        self.samples.clear()

    def repeat(self) -> None:
        """Time one more repetition; the first of its values compiles and records them."""
        state = self._state()
        run = self._graphs.get(state)
        if run is None:
            self._all()  # compiles, and makes the tables that launches read
            run = self._graphs[state] = self._device.capture(self._all).replay
            run()
        taken = self._device.seconds(lambda: [run() for _ in range(self._count)])
        self.samples.append(taken / self._count / self._turns)

    def _all(self) -> None:
        for turn in range(self._turns):
            self._call(turn)


def setting_of(
    bench: Bench, model: ModelConfig, variant: Variant, args: argparse.Namespace
) -> Setting:
    """Return the setting of one model's cases, whose arguments no cache of a card holds."""
    rows = args.rows or ROWS
    if max(rows) > ROWS[-2]:  # products of coded weights are dense ones from there on
        rows = sorted({*rows, ROWS[-2]})
    return Setting(
        model, rounded(bench.ops, variant.quantization), variant, rows, args.context, 16,
        max_num_seqs=256, random=np.random.default_rng(args.seed), cache_bytes=UNCACHED,
    )  # fmt: skip


def tasks(op: str, bench: Bench, setting: Setting) -> Iterator[Task]:
    """Yield what to tune of an op, "gemm", "attention" or "recurrent"."""
    if op != "gemm":
        yield from (attention if op == "attention" else recurrent)(bench, setting)
        return
    for product in layers(setting):
        yield _product(bench, product, setting)
    yield from experts(bench, setting)


def _product(bench: Bench, product: Product, setting: Setting) -> Task:
    first = product.rows[0]
    shapes = [_shape(setting, product.weights[0], rows) for rows in product.rows]
    fields: dict[str, Sequence[int]] = {**_FIELDS, "waves": _WAVES}
    if first > 64:
        fields["rows"] = (64, 128, 256)
    else:
        fields["early"] = (-1, 1, 2, 3, 4)
    return _tile_task(
        bench, product.label, shapes, product.rows, product.calls, fields, len(product.weights)
    )


def experts(bench: Bench, setting: Setting) -> Iterator[Task]:
    """Yield the two products of a mixture of experts, each with each size of tiles."""
    moe = setting.model.moe
    if moe is None:
        return
    ops, packed = remembering(setting.ops)
    rows = [max(1, tile * moe.num_experts // moe.route.top_k) for tile in EXPERT_TILES]
    *_, cases = expert_cases.moe(replace(setting, rows=[1, *rows], ops=ops))
    alone, *calls = [case.call for case in cases]
    for (name, weight), (tile, call) in itertools.product(
        zip(("gate_up", "down"), packed, strict=True), zip(EXPERT_TILES, calls, strict=True)
    ):
        shape = _shape(setting, weight, tile, experts=True)
        label = f"experts {name} {shape[2]}x{shape[3]}, tiles of {tile}"
        yield _tile_task(
            bench, label, [shape], (tile // 2 + 1 if tile > EXPERT_TILES[0] else 1, tile),
            [alone, call] if tile == EXPERT_TILES[0] else [call], _FIELDS, 1,
        )  # fmt: skip


def _shape(setting: Setting, weight: LinearWeight, rows: int, *, experts: bool = False) -> Shape:
    from quire.ops.torch_ops.arrays import torch_dtype
    from quire.ops.triton.linear import tuned_shape
    from quire.ops.triton.weights import device_weight

    dtype = torch_dtype(setting.variant.numpy_dtype)
    return tuned_shape(device_weight(weight), dtype, rows, experts=experts)


def _tile_task(
    bench: Bench,
    label: str,
    shapes: Sequence[Shape],
    rows: tuple[int, int],
    calls: Sequence[Call],
    fields: Mapping[str, Sequence[int]],
    arguments: int,
) -> Task:
    """Return a task whose result holds for the last of the shapes that `calls` have."""

    def entry(shape: Any, values: Any, rows: tuple[int, int], gain: float) -> TunedTile:
        _, kind, n, k, group = shape
        return TunedTile(kind, n, k, group, rows, TileTuning(**values), gain)

    def tuning(values: Values) -> CardTuning:
        tiles = [entry(shape, values, (1, _ANY_ROWS), 0.0) for shape in dict.fromkeys(shapes)]
        return _with(bench.empty, gemm=tiles)

    subject = _subject(bench, calls, fields, tuning, arguments)
    shape = shapes[-1]
    return Task(
        f"{label}, {shape[1]}", shape, subject,
        lambda found: entry(shape, found.values, rows, found.gain), rows,
    )  # fmt: skip


def attention(bench: Bench, setting: Setting) -> Iterator[Task]:
    """Yield attention with the model's heads, tokens and prompts together."""
    m, variant = setting.model, setting.variant
    name = variant.kv_cache_dtype
    kv_dtype = variant.dtype if name in (None, "auto") else str(name)
    if kv_dtype != "int4":
        kv_dtype = str(dtype_of(kv_dtype))
    heads = m.num_attention_heads, m.num_key_value_heads, m.head_dim, kv_dtype
    fields: dict[str, Sequence[int]] = {"stages": (1, 2, 3, 4), "waves": _WAVES}
    if m.latent is None:
        fields |= {"prompt_rows": (64, 128), "prompt_stages": (1, 2, 3, 4)}

    def entry(values: Any, gain: float) -> TunedHeads:
        return TunedHeads(*heads, HeadTuning(**values), gain)

    cases = [case for group in attention_cases.attention(setting) for case in group]
    subject = _subject(
        bench,
        [case.call for case in cases],
        fields,
        lambda values: _with(bench.empty, attention=[entry(values, 0.0)]),
        _CACHES,
    )  # fmt: skip
    label = f"attention {heads[0]}/{heads[1]}x{heads[2]} {kv_dtype}"
    yield Task(label, ("attention", *heads), subject, lambda found: entry(found.values, found.gain))


def recurrent(bench: Bench, setting: Setting) -> Iterator[Task]:
    """Yield the ops of the model's recurrent layers, with tokens and prompts together."""
    for op in recurrent_cases.of_model(setting.model):
        yield _states(bench, setting, op)


def _states(bench: Bench, setting: Setting, op: recurrent_cases.Op) -> Task:
    *_, rows, columns = op.state

    def entry(values: Any, gain: float) -> TunedStates:
        return TunedStates(op.name, rows, columns, StateTuning(**values), gain)

    fields: dict[str, Sequence[int]] = {"stages": (1, 2, 3, 4)}
    if op.name == "causal_conv1d":
        fields = {"channels": (128, 256, 512, 1024)}
    cases = [case for group in recurrent_cases.recurrent(setting, [op]) for case in group]
    subject = _subject(
        bench, [case.call for case in cases], fields,
        lambda values: _with(bench.empty, recurrent=(entry(values, 0.0),)), _CACHES,
    )  # fmt: skip
    return Task(
        f"{op.name} {rows}x{columns}", ("recurrent", op.name, rows, columns), subject,
        lambda found: entry(found.values, found.gain),
    )  # fmt: skip


def _subject(
    bench: Bench,
    calls: Sequence[Call],
    fields: Mapping[str, Sequence[int]],
    tuning: Callable[[Values], CardTuning],
    arguments: int,
) -> Subject:
    """Return a subject that puts values in force as a tuning.

    Args:
        arguments: through how many the calls rotate.
    """
    turns = max(_LEAST_TURNS, min(arguments, _MOST_TURNS))
    state: tuple[tuple[str, int], ...] = ()

    def apply(values: Values) -> None:
        nonlocal state
        state = tuple(sorted(values.items()))
        bench.chosen.use(tuning(values))

    def clock(call: Call, seconds: float) -> CardClock:
        return CardClock(bench.device, lambda: state, call, seconds, turns)

    return Subject(calls, fields, apply, clock)


def sound(bench: Bench, subject: Subject, report: Callable[[str], object]) -> Subject:
    """Return the subject with those values that the card runs, and that change no bit.

    Args:
        report: is given a line about each other value.
    """
    own = _results(bench, subject, {})
    kept = {
        field: [value for value in values if _is_sound(bench, subject, {field: value}, own, report)]
        for field, values in subject.fields.items()
    }
    subject.apply({})
    return replace(subject, fields={field: values for field, values in kept.items() if values})


def confirmed(
    bench: Bench, subject: Subject, found: Found | None, report: Callable[[str], object]
) -> Found | None:
    """Return what was found, if its values together change no bit."""
    if found is None:
        return None
    same = _is_sound(bench, subject, found.values, _results(bench, subject, {}), report)
    subject.apply({})
    return found if same else None


def _is_sound(
    bench: Bench,
    subject: Subject,
    values: Values,
    own: Sequence[bytes],
    report: Callable[[str], object],
) -> bool:
    chosen = ", ".join(f"{field} {value}" for field, value in values.items())
    try:
        found = _results(bench, subject, values)
    except bench.refusals as error:
        report(f"{chosen} left out: {str(error).splitlines()[0][:200]}")
        return False
    if found != own:
        report(f"{chosen} left out: it changes bits")
    return found == own


def _results(bench: Bench, subject: Subject, values: Values) -> list[bytes]:
    """Return the bytes of each call's result."""
    subject.apply(values)

    results: list[Any] = [call(0) for call in subject.calls]
    return [bench.ops.numpy(result).tobytes() for result in results]


def _with(empty: CardTuning, **lists: Any) -> CardTuning:
    return CardTuning(empty.device, empty.isa, empty.threads, **lists)
