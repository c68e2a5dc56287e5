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
from quire.core.cost import PROFILES, HardwareProfile
from quire.core.errors import ConfigError, QuireError
from quire.core.hardware import detect
from quire.core.registry import did_you_mean
from quire.models.cost import product_dtype, roofline
from quire.simulate.probe import probe

THIS = "this"
STREAMS = 32
"""At once, to see what each costs beside the model."""


def load_profile(name: str, config: EngineConfig) -> HardwareProfile:
    """The profile of that name, in that file, or of this machine with that model.

    Raises:
        ConfigError: there is none, or the file is wrong.
    """
    if name == THIS:
        return measure(config)
    if name in PROFILES:
        return PROFILES[name]
    if not (path := Path(name)).is_file():
        known = [THIS, *PROFILES]
        raise ConfigError(f"--hardware is {name!r}; {did_you_mean(name, known)} Or give a file.")
    try:
        return msgspec.json.decode(path.read_bytes(), type=HardwareProfile)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"The hardware profile {path} is wrong: {error}.") from None


def measure(config: EngineConfig) -> HardwareProfile:
    """Measure this machine with the engine itself, idle but for this; takes half a minute.

    Steps of the very model give the rates (see `probe`), and a tiny model over HTTP what a step and
    a stream cost beside the model. What is reached is measured, not a peak, so that shares are 1.
    """
    print("Measuring this machine; it takes half a minute (see --save-hardware).", file=sys.stderr)
    types = {config.dtype, product_dtype(config.dtype, config.quantization)}
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
    cost = roofline(
        config.model,
        unit,
        dtype=config.dtype,
        quantization=config.quantization,
        kv_cache_dtype=config.kv_cache_dtype,
    )
    reached = probe(config, cost)
    step, stream, request = _overheads()
    return replace(
        unit,
        bytes_per_second=reached.weights,
        flops_per_second=dict.fromkeys(types, reached.products),
        attention_share=reached.attention / reached.products,
        kv_share=reached.keys / reached.weights,
        overhead_seconds=step,
        seq_overhead_seconds=stream,
        request_overhead_seconds=request,
        copy_bytes_per_second=0.4 * reached.weights,  # read, written, and fetched to be written
    )


def _overheads() -> tuple[float, float, float]:
    """Seconds of a step, of each stream in it, and of a request, that are not the model's.

    From the embedded model over HTTP: the parts of its steps that the server counts apart, and
    what a lone client's cycle takes beside its tokens.
    """
    output_len = 64
    lengths = ["--input-len", "16", "--output-len", str(output_len)]
    one, many = (
        _bench("serve", *lengths, "--num-clients", str(n), "--num-prompts", str(max(8, 2 * n)))
        for n in (1, STREAMS)
    )
    alone, together = (
        row["itl_ms"]["p50"] / 1e3 * (1.0 - _model_share(row)) for row in (one, many)
    )
    stream = max(0.0, together - alone) / (STREAMS - 1)
    cycle = output_len / one["output_tok_s"]
    request = max(0.0, cycle - output_len * one["itl_ms"]["p50"] / 1e3)
    return max(0.0, alone - stream), stream, request


def _model_share(row: dict[str, Any]) -> float:
    """Of the core's time with work, the part that `probe` times: the executor's."""
    split: dict[str, float] = row["split"]
    return sum(split[part] for part in ("prepare", "model", "sample")) / (1.0 - split["idle"])


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
