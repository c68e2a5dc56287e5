"""`quire bench kernels`: the speed of each op, and its share of the machine's limit."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from quire.bench import choices
from quire.bench.bandwidth import Reader
from quire.bench.kernels import attention, cases, experts
from quire.bench.kernels.case import Variant, cache_bytes
from quire.bench.kernels.cases import Cases, Setting
from quire.bench.kernels.recurrent import recurrent
from quire.bench.kernels.rounded import load_rounded
from quire.bench.kernels.sampling import sampling
from quire.bench.kernels.timing import STABLE_SPREAD, Limits, Timed, interleave
from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row
from quire.checkpoint.presets import preset_config
from quire.core.errors import ConfigError
from quire.core.extras import require
from quire.core.model_config import ModelConfig
from quire.ops.interface import Ops
from quire.ops.native.kernels import available_isas
from quire.system.hardware import detect

if TYPE_CHECKING:
    from quire.bench.peers.torch_calls import TorchCalls

FAMILIES: dict[str, tuple[Callable[[Setting], Cases], tuple[str, ...]]] = {
    "embedding": (cases.embedding, ()),
    "norm": (cases.norm, ()),
    "quantize": (cases.quantize, ("quantization",)),
    "gemm": (cases.gemm, ("quantization",)),
    "rope_kv_write": (attention.rope_kv_write, ("kv_cache_dtype",)),
    "attention": (attention.attention, ("kv_cache_dtype",)),
    "recurrent": (recurrent, ()),
    "activation": (cases.activation, ()),
    "lora": (experts.lora, ()),
    "moe": (experts.moe, ("quantization",)),
    "sampling": (sampling, ()),
    "pack": (cases.pack, ("quantization",)),
}
"""Family → its cases, and the fields other than `dtype` that change it; in the order of a step."""


def run(args: argparse.Namespace) -> list[Row]:
    """Measure every case in turns; return one row per case."""
    threads = args.num_threads or detect().cores
    isas = args.isa or available_isas()[-1:]
    bench = _Bench(args, threads)
    timed: list[tuple[str, Timed]] = []
    families = args.op or list(FAMILIES)
    with progress(total=len(args.model) * len(families), unit="op") as bar:
        for model in args.model:
            for family in families:
                settings = [s for isa in isas for s in bench.settings(model, family, isa)]
                timed += [(model, t) for t in bench.family(family, settings)]
                bar.update()
    return [bench.row(model, t) for model, t in timed]


class _Bench:
    """The machine's limits, and the ops that the families share."""

    def __init__(self, args: argparse.Namespace, threads: int) -> None:
        self._args = args
        self._threads = threads
        self._torch = _torch_calls(threads) if args.torch else None
        self._tables: dict[tuple[str, str | None], Ops] = {}
        self._limits = Limits(Reader(threads))
        self._cache_bytes = cache_bytes()
        self._random = np.random.default_rng(args.seed)

    def settings(self, model: str, family: str, isa: str) -> Iterator[Setting]:
        """Yield one setting per combination of dtypes that changes this family.

        Raises:
            ConfigError: this machine lacks the ISA, or the engine refuses the dtypes.
        """
        args = self._args
        for variant, config in variants(args, model, isa, FAMILIES[family][1]):
            yield Setting(
                config, self._ops(isa, variant.quantization), variant, args.rows, args.context,
                args.block_size, args.max_num_seqs, self._torch, self._random,
            )  # fmt: skip

    def family(self, name: str, settings: list[Setting]) -> Iterator[Timed]:
        """Yield the timed cases, group by group; within a group all settings take turns."""
        args = self._args
        for setting in settings:
            # torch's rate is no limit for a slower instruction set than its own.
            best = setting.variant.isa == available_isas()[-1]
            self._limits.add_products(setting.ops, setting.variant, self._torch if best else None)
        for groups in zip(*(FAMILIES[name][0](s) for s in settings), strict=True):
            found = [case for group in groups for case in group]
            yield from interleave(found, args.repetitions, args.seconds, self._limits.measure)
        self._limits.drop_products()

    def row(self, model: str, timed: Timed) -> Row:
        """Return the row of a case, compared with the limits measured so far."""
        case, seconds = timed.case, timed.median
        peak = self._limits.flops(case.variant)
        for_memory = case.moved_bytes / self._limits.bandwidth
        for_compute = case.flops / peak if case.flops else 0.0
        in_cache = case.rotated_bytes <= self._cache_bytes
        limit = "compute" if for_compute > for_memory else "cache" if in_cache else "memory"
        return {
            "model": portable_name(model),
            "op": case.op,
            "name": case.name,
            "shape": case.shape,
            "rows": case.variant.rows,
            "dtype": case.variant.dtype,
            "quantization": case.variant.quantization,
            "kv_cache_dtype": case.variant.kv_cache_dtype,
            "isa": case.variant.isa,
            "threads": self._threads,
            "time_us": seconds * 1e6,
            "gb_s": case.moved_bytes / seconds / 1e9,
            "gflop_s": case.flops / seconds / 1e9 if case.flops else None,
            "limit": limit,
            "share": None if limit == "cache" else max(for_memory, for_compute) / seconds,
            "spread": timed.spread,
            "unstable": timed.spread > STABLE_SPREAD,
            "times_torch": timed.times_torch,
            "bandwidth_gb_s": self._limits.bandwidth / 1e9,
            "peak_gflop_s": peak / 1e9 if case.flops else None,
            "repetitions": len(timed.samples),
            "min": {"time_us": min(timed.samples) * 1e6},
            "max": {"time_us": max(timed.samples) * 1e6},
        }

    def _ops(self, isa: str, quantization: str | None) -> Ops:
        check_isa(isa)
        key = (isa, quantization)
        if key not in self._tables:
            self._tables[key] = load_rounded(isa, self._threads, quantization)
        return self._tables[key]


def variants(
    args: argparse.Namespace,
    model: str,
    isa: str,
    types: tuple[str, ...],
    engine: Mapping[str, str] = {"ops": "cpu"},
) -> Iterator[tuple[Variant, ModelConfig]]:
    """Yield each combination that the engine accepts of `--dtype` and the flags `types`.

    Args:
        engine: other fields of `EngineArgs`.
    """
    fields = {name: getattr(args, name) for name in ("dtype", *types)}
    dummy = preset_config(model) is not None
    base = {"model": model, "load_format": "dummy" if dummy else "auto", **engine}
    for chosen, config in choices.combinations(base, fields):
        yield Variant(0, chosen.dtype, isa, **{n: getattr(chosen, n) for n in types}), config


def check_isa(isa: str) -> None:
    """Raise ConfigError if this machine cannot run the instruction set."""
    if isa not in available_isas():
        raise ConfigError(
            f"--isa {isa}: this machine cannot run it.",
            fix=f"It can run {', '.join(available_isas())}.",
            param="--isa",
        )


def _torch_calls(threads: int) -> TorchCalls:
    """Return torch's calls; raise ConfigError if torch is not installed."""
    require("torch", "--torch", "--torch")
    from quire.bench.peers.torch_calls import TorchCalls

    return TorchCalls(threads)
