"""Adapters of the tiny model, sound ones and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.e2e.tiny_model import CONFIG

_HIDDEN, _WIDTH = CONFIG["hidden_size"], CONFIG["intermediate_size"]
SHAPES = {
    "self_attn.q_proj": (64, _HIDDEN),
    "self_attn.k_proj": (32, _HIDDEN),
    "self_attn.v_proj": (32, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, 64),
    "mlp.gate_proj": (_WIDTH, _HIDDEN),
    "mlp.up_proj": (_WIDTH, _HIDDEN),
    "mlp.down_proj": (_HIDDEN, _WIDTH),
}
"""Module → [rows, columns]."""
Tensors = dict[str, np.ndarray]


def write_tiny_adapter(
    folder: Path,
    seed: int = 1,
    *,
    rank: int = 4,
    edit: Callable[[Tensors], object] = lambda tensors: None,
    **config: Any,
) -> Path:
    """Write an adapter of every layer into `folder`, after `edit`; `config` replaces fields."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": [module.rpartition(".")[2] for module in SHAPES],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(fields | config))
    tensors = tiny_deltas(seed, rank)
    edit(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def tiny_deltas(seed: int, rank: int) -> Tensors:
    """A and B of every layer, which change it about as much as it is large."""
    random = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) * 0.2).astype(np.float32)

    tensors: Tensors = {}
    for layer in range(CONFIG["num_hidden_layers"]):
        for module, (rows, columns) in SHAPES.items():
            stem = f"base_model.model.model.layers.{layer}.{module}"
            tensors[f"{stem}.lora_A.weight"] = matrix(rank, columns)
            tensors[f"{stem}.lora_B.weight"] = matrix(rows, rank)
    return tensors
