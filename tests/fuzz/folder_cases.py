"""A model's folder in which somebody has tampered with a file; a function of a seed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.e2e.tiny_model import CONFIG, VOCAB_SIZE
from tests.fuzz.json_cases import changed, tampered_json
from tests.fuzz.safetensors_cases import packed

INDEX = "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
_CONFIG = CONFIG | {
    "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "sliding_window": None,
    "num_hidden_layers": 1,
}
_ARCHITECTURES = ("Llama", "Mistral", "Qwen2", "Qwen3")


def _shapes() -> dict[str, list[int]]:
    hidden, width, kv = _CONFIG["hidden_size"], _CONFIG["intermediate_size"], 32
    layer = {
        "input_layernorm": [hidden],
        "self_attn.q_proj": [hidden, hidden],
        "self_attn.k_proj": [kv, hidden],
        "self_attn.v_proj": [kv, hidden],
        "self_attn.o_proj": [hidden, hidden],
        "post_attention_layernorm": [hidden],
        "mlp.gate_proj": [width, hidden],
        "mlp.up_proj": [width, hidden],
        "mlp.down_proj": [hidden, width],
    }
    return {
        "model.embed_tokens.weight": [VOCAB_SIZE, hidden],
        **{f"model.layers.0.{name}.weight": shape for name, shape in layer.items()},
        "model.norm.weight": [hidden],
        "lm_head.weight": [VOCAB_SIZE, hidden],
    }


def _shard(names: list[str]) -> tuple[dict[str, Any], bytes]:
    shapes, header, at = _shapes(), {}, 0
    for name in names:
        size = 4
        for extent in shapes[name]:
            size *= extent
        header[name] = {"dtype": "F32", "shape": shapes[name], "data_offsets": [at, at + size]}
        at += size
    return header, bytes(at)


NAMES = list(_shapes())
_HALVES = (NAMES[: len(NAMES) // 2], NAMES[len(NAMES) // 2 :])
_FILES = [_shard(names) for names in _HALVES]
_INDEX = {
    "metadata": {},
    "weight_map": {n: f for f, ns in zip(SHARDS, _HALVES, strict=True) for n in ns},
}


def write_sound(folder: Path) -> None:
    """Everything as it should be."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, (header, data) in zip(SHARDS, _FILES, strict=True):
        (folder / shard).write_bytes(packed(json.dumps(header).encode(), data))
    (folder / INDEX).write_text(json.dumps(_INDEX))
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    (folder / "generation_config.json").write_text('{"temperature": 0.5}')


def tamper(dice: random.Random, folder: Path) -> str:
    """Spoil one file of a sound folder; its name."""
    how = dice.randrange(10)
    if how < 6:
        config = _CONFIG | {"architectures": [dice.choice(_ARCHITECTURES) + "ForCausalLM"]}
        (folder / "config.json").write_bytes(tampered_json(dice, config))
        return "config.json"
    if how < 8:
        (folder / INDEX).write_bytes(tampered_json(dice, _INDEX))
        return INDEX
    if how == 8:
        (folder / "generation_config.json").write_bytes(tampered_json(dice, {"temperature": 1}))
        return "generation_config.json"
    shard = dice.randrange(2)
    header, data = _FILES[shard]
    header = changed(dice, header)
    (folder / SHARDS[shard]).write_bytes(packed(json.dumps(header).encode(), data))
    return SHARDS[shard]


def mend(folder: Path, name: str) -> None:
    """Undo `tamper`."""
    if name in SHARDS:
        header, data = _FILES[SHARDS.index(name)]
        (folder / name).write_bytes(packed(json.dumps(header).encode(), data))
    elif name == INDEX:
        (folder / name).write_text(json.dumps(_INDEX))
    elif name == "config.json":
        (folder / name).write_text(json.dumps(_CONFIG))
    else:
        (folder / name).write_text("{}")
