"""Random LoRA adapters, to measure the cost of one."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from quire.bench.results.report import Row
from quire.checkpoint.safetensors_writer import StoredTensor, write_file
from quire.core.lora import LoRARequest
from quire.core.model_config import ModelConfig
from quire.models.adapters import lora_targets


def enable(args: argparse.Namespace) -> None:
    """Make the engine serve adapters of `--lora-rank`."""
    if args.lora_rank:
        args.enable_lora = True
        args.max_lora_rank = max(args.max_lora_rank, args.lora_rank)


@contextmanager
def random_adapter(model: ModelConfig, rank: int) -> Iterator[LoRARequest | None]:
    """Yield an adapter of every layer, in a temporary folder; None if `rank` is 0."""
    if not rank:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="quire-lora-") as folder:
        _write(Path(folder), model, rank)
        yield LoRARequest("random", 1, folder)


def ratios(base: Row, adapted: Row) -> Row:
    """Return the times of a batch with the adapter, divided by those without."""
    return {
        "lora_ttft_ratio": adapted["ttft_s"] / base["ttft_s"],
        "lora_tpot_ratio": adapted["tpot_ms"] / base["tpot_ms"],
    }


def _write(folder: Path, model: ModelConfig, rank: int) -> None:
    targets = lora_targets(model)
    names = sorted({module.rpartition(".")[2] for module in targets})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": names}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    random = np.random.default_rng(0)

    def noise(shape: tuple[int, int]) -> npt.NDArray[np.float16]:
        return (random.standard_normal(shape, np.float32) * 0.01).astype(np.float16)

    tensors = [
        StoredTensor(f"base_model.model.{module}.lora_{half}.weight", "F16", shape, make)
        for module, target in targets.items()
        for half, shape in (("A", (rank, target.columns)), ("B", (target.rows, rank)))
        for make in (partial(noise, shape),)
    ]
    write_file(folder / "adapter_model.safetensors", tensors)
