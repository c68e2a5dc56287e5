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
import numpy as np

from quire.checkpoint import source as checkpoint
from quire.core.config import LoadFormat, ModelConfig
from quire.core.cost import PROFILES, HardwareProfile, RooflineCost
from quire.core.errors import ConfigError, QuireError
from quire.core.hardware import detect
from quire.core.registry import did_you_mean
from quire.models.cost import product_dtype, roofline
from quire.models.memory import parameter_count
from quire.models.registry import model_config

THIS = "this"
PROBE = "qwen3-0.6b"
"""Large enough that its weights come from memory, not from a cache."""
SHORT, LONG = 128, 2048
"""Prompts whose speeds tell products and attention apart."""
STREAMS = 32
"""At once, to see what each costs beside the model."""


def load_profile(name: str, dtype: str, quantization: str | None) -> HardwareProfile:
    """The profile of that name, in that file, or of this machine for weights of that type.

    Raises:
        ConfigError: there is none, or the file is wrong.
    """
    if name == THIS:
        return measure(dtype, quantization)
    if name in PROFILES:
        return PROFILES[name]
    if not (path := Path(name)).is_file():
        known = [THIS, *PROFILES]
        raise ConfigError(f"--hardware is {name!r}; {did_you_mean(name, known)} Or give a file.")
    try:
        return msgspec.json.decode(path.read_bytes(), type=HardwareProfile)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"The hardware profile {path} is wrong: {error}.") from None


def measure(dtype: str, quantization: str | None) -> HardwareProfile:
    """Measure this machine through the engine itself, idle but for this; takes a minute or two.

    A decode step of a model of 0.6B gives the bandwidth, a short and a long prompt the rates of
    products and of attention, and a tiny model over HTTP what a step and a stream cost beside the
    model. What is reached is measured, not a peak, so that all shares are 1.
    """
    print(
        "Measuring this machine; it takes a minute or two (see --save-hardware).", file=sys.stderr
    )
    types = ["--dtype", dtype, *(["--quantization", quantization] if quantization else [])]
    probe = ["--model", PROBE, "--load-format", "dummy", "--max-model-len", "4096", *types]
    lengths = ["--output-len", "24", "--input-len"]
    short, long = (_bench("latency", *probe, *lengths, str(n)) for n in (SHORT, LONG))
    unit = HardwareProfile(
        name=THIS,
        memory_bytes=detect().memory_bytes,
        bytes_per_second=1.0,
        flops_per_second={dtype: 1.0, product_dtype(dtype, quantization): 1.0},
        bandwidth_share=1.0,
        flops_share=1.0,
        attention_share=1.0,
        overhead_seconds=0.0,
        seq_overhead_seconds=0.0,
        copy_bytes_per_second=1.0,
    )
    model = roofline(_model(PROBE, "dummy"), unit, dtype=dtype, quantization=quantization)
    step_bytes = model.weight_bytes + model.kv_bytes_per_token * SHORT
    bandwidth = step_bytes / (short["tpot_ms"] / 1e3)
    products, attention = _rates(model, short["ttft_s"], long["ttft_s"])
    step, stream = _overheads(products / detect().cores)
    return replace(
        unit,
        bytes_per_second=bandwidth,
        flops_per_second=dict.fromkeys(unit.flops_per_second, products),
        attention_share=attention / products,
        overhead_seconds=step,
        seq_overhead_seconds=stream,
        copy_bytes_per_second=0.4 * bandwidth,  # read, written, and fetched to be written
    )


def _rates(model: RooflineCost, short: float, long: float) -> tuple[float, float]:
    """Operations a second of products and of attention, from the seconds of the two prompts."""
    work = np.array(
        [
            (
                model.flops_per_token * n + model.flops_per_row,
                model.flops_per_pair * n * (n + 1) / 2,
            )
            for n in (SHORT, LONG)
        ]
    )
    products, attention = np.linalg.solve(work, np.array([short, long]))
    if products <= 0 or attention <= 0:  # too noisy to tell them apart
        both = float(work[1].sum() / long)
        return both, both
    return float(1 / products), float(1 / attention)


def _overheads(flops_per_second: float) -> tuple[float, float]:
    """Seconds of a step, and of each stream in it, that are not the model's.

    Args:
        flops_per_second: of the one thread that computes a tiny model.
    """
    lengths = ["--input-len", "16", "--output-len", "64"]
    one, many = (
        _bench("serve", *lengths, "--num-clients", str(n), "--num-prompts", str(2 * n))
        for n in (1, STREAMS)
    )
    alone, together = (row["itl_ms"]["p50"] / 1e3 for row in (one, many))
    tiny = 2 * parameter_count(_model("embedded", "auto")) / flops_per_second
    stream = max(0.0, (together - alone) / (STREAMS - 1) - tiny)
    return max(0.0, alone - stream - tiny), stream


def _model(name: str, load_format: LoadFormat) -> ModelConfig:
    return model_config(checkpoint.resolve(name, load_format=load_format).config)


def _bench(name: str, *flags: str) -> dict[str, Any]:
    """The row of `quire bench NAME FLAGS`, run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "row.json"
        command = [sys.executable, "-m", "quire.cli.main", "bench", name, *flags]
        command += ["--repetitions", "2", "--json", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise QuireError(f"This machine could not be measured: {done.stderr.strip()[-500:]}")
        row: dict[str, Any] = json.loads(file.read_text())
        return row
