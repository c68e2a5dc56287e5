"""The machine to simulate: by name, from a file, or this one, measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from quire.core.config import EngineConfig
from quire.core.cost import PROFILES, HardwareProfile, RooflineCost
from quire.core.errors import ConfigError, QuireError
from quire.core.registry import did_you_mean
from quire.models.cost import product_type, roofline
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import engine_flags_from
from quire.simulate.probe import probe, spread
from quire.system.hardware import detect
from quire.system.records import dataclass

THIS = "this"
STREAMS = 16
"""Number of clients at once, to measure the cost of each besides the model."""
INPUT_LEN, OUTPUT_LEN = 16, 32
EXECUTOR = ("prepare", "model", "sample")
"""Parts of the core's time that `probe` already measures."""
SERVED = (
    *("model", "hf_overrides", "load_format", "dtype", "quantization", "kv_cache_dtype"),
    *("kv_cache_memory_bytes", "calculate_kv_scales", "max_model_len", "device", "num_threads"),
)
"""Flags of the engine that is served to measure this machine."""


def load_profile(name: str) -> HardwareProfile:
    """Return the profile of that name or file; `measure` returns that of this machine.

    Raises:
        ConfigError: the name is unknown, or the file is wrong.
    """
    if name in PROFILES:
        return PROFILES[name]
    if not (path := Path(name)).is_file():
        known = [THIS, *PROFILES]
        raise ConfigError(f"--hardware is {name!r}, which is no file; {did_you_mean(name, known)}")
    try:
        return msgspec.json.decode(path.read_bytes(), type=HardwareProfile)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"The hardware profile {path} is wrong: {error}.") from None


def measure(engine: EngineArgs, config: EngineConfig) -> HardwareProfile:
    """Measure this machine with the model; takes about a minute on an idle machine.

    Handmade steps give the rates (see `probe`). Serving the model over HTTP gives the overheads per
    step, stream and request, and the slowdown while front end, clients and other replicas use the
    same cores and memory. The rates are reached ones, not peaks, so the shares are 1.

    Args:
        config: what `engine` resolves to: one replica's, if it has several.
    """
    print("Measuring this machine; it takes a minute (see --save-hardware).", file=sys.stderr)
    types = {config.dtype, product_type(config)}
    unit = HardwareProfile(
        name=THIS,
        memory_bytes=detect().memory_bytes,
        bytes_per_second=1.0,
        flops_per_second=dict.fromkeys(types, 1.0),
        bandwidth_share=1.0,
        flops_share=1.0,
        attention_share=1.0,
        kv_share=1.0,
        overhead_seconds=0.0,
        seq_overhead_seconds=0.0,
    )

    reached = probe(config, roofline(config, unit))
    alone = replace(
        unit,
        bytes_per_second=reached.weights,
        flops_per_second=dict.fromkeys(types, reached.products),
        attention_share=reached.attention / reached.products,
        kv_share=reached.keys / reached.weights,
        copy_bytes_per_second=0.4 * reached.weights,  # a copy reads, writes, and fetches the target
        spread=reached.spread,
    )
    return _served(engine, alone, roofline(config, alone))


def _served(engine: EngineArgs, alone: HardwareProfile, cost: RooflineCost) -> HardwareProfile:
    """Return the profile `alone` with the overheads of serving.

    Steps of one client per replica are bound by memory, those of many by products. So their
    slowdowns give the slowdown of either.
    """
    one, many = (_Served.measure(engine, count) for count in (1, STREAMS))
    context = INPUT_LEN + OUTPUT_LEN // 2
    memory = one.model / cost.seconds(1, 1, context)

    def crowded(arithmetic: float) -> RooflineCost:
        return replace(
            cost,
            bytes_per_second=cost.bytes_per_second / memory,
            kv_bytes_per_second=(cost.kv_bytes_per_second or 0.0) / memory,
            flops_per_second=cost.flops_per_second / arithmetic,
            attention_flops_per_second=cost.attention_flops_per_second / arithmetic,
        )

    least, most = 0.5, 4.0
    while most - least > 0.01:
        middle = (least + most) / 2
        short = crowded(middle).seconds(STREAMS, STREAMS, STREAMS * context) < many.model
        least, most = (middle, most) if short else (least, middle)
    stream = max(0.0, many.rest - one.rest) / (STREAMS - 1)
    return replace(
        alone,
        bytes_per_second=alone.bytes_per_second / memory,
        flops_per_second={dtype: rate / most for dtype, rate in alone.flops_per_second.items()},
        overhead_seconds=max(0.0, one.rest - stream),
        seq_overhead_seconds=stream,
        request_overhead_seconds=one.request,
        spread=max(alone.spread, one.spread, many.spread),
    )


@dataclass(frozen=True, slots=True)
class _Served:
    """Times of a served load, in seconds.

    Attributes:
        model: the executor's time per step.
        rest: the other time per step.
        request: time per request besides its tokens.
        spread: difference between repetitions; see `HardwareProfile`.
    """

    model: float
    rest: float
    request: float
    spread: float

    @classmethod
    def measure(cls, engine: EngineArgs, count: int) -> _Served:
        """Measure with a number of clients per replica, each of which sends some requests."""
        flags, replicas = {name: getattr(engine, name) for name in SERVED}, len(engine.replicas)
        served, clients = EngineArgs(**flags, data_parallel_size=replicas), count * replicas
        load = {
            "input-len": INPUT_LEN,
            "output-len": OUTPUT_LEN,
            "num-clients": clients,
            "num-prompts": max(4 * replicas, 2 * clients),
        }
        words = [f"--{name}={value}" for name, value in load.items()]
        row = _bench("serve", *engine_flags_from(served), *words)
        split: dict[str, float] = row["split"]
        step = row["itl_ms"]["p50"] / 1e3
        model = step * sum(split[part] for part in EXECUTOR) / (1.0 - split["idle"])
        cycle = clients * OUTPUT_LEN / row["output_tok_s"]
        tokens = [row[end]["output_tok_s"] for end in ("min", "max")]
        return cls(model, step - model, max(0.0, cycle - OUTPUT_LEN * step), spread(tokens))


def _bench(name: str, *flags: str) -> dict[str, Any]:
    """Return the row of `quire bench NAME FLAGS`, run in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        command = [sys.executable, "-m", "quire", "bench", name, *flags]
        command += ["--repetitions", "2", "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise QuireError(f"This machine could not be measured: {done.stderr.strip()[-500:]}")
        row: dict[str, Any] = json.loads(file.read_text())
        return row
