"""A model's folder in which somebody has tampered with a file; a function of a seed."""

from __future__ import annotations

import json
import math
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
_HIDDEN, _WIDTH, _KV, _EXPERTS = CONFIG["hidden_size"], CONFIG["intermediate_size"], 32, 2
_HEAD_DIM = _HIDDEN // CONFIG["num_attention_heads"]
_MLP = {
    "gate_proj": [_WIDTH, _HIDDEN],
    "up_proj": [_WIDTH, _HIDDEN],
    "down_proj": [_HIDDEN, _WIDTH],
}
_EXPERTS_FIELDS = {
    "head_dim": _HEAD_DIM,
    "attention_bias": False,
    "num_experts": _EXPERTS,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": _WIDTH,
    "norm_topk_prob": True,
    "mlp_only_layers": [],
    "decoder_sparse_step": 1,
}


def _shapes(own: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the shapes of a model whose layer has `own` tensors besides attention's and norms."""
    layer = {
        "input_layernorm": [_HIDDEN],
        "self_attn.q_proj": [_HIDDEN, _HIDDEN],
        "self_attn.k_proj": [_KV, _HIDDEN],
        "self_attn.v_proj": [_KV, _HIDDEN],
        "self_attn.o_proj": [_HIDDEN, _HIDDEN],
        "post_attention_layernorm": [_HIDDEN],
        **own,
    }
    return {
        "model.embed_tokens.weight": [VOCAB_SIZE, _HIDDEN],
        **{f"model.layers.0.{name}.weight": shape for name, shape in layer.items()},
        "model.norm.weight": [_HIDDEN],
        "lm_head.weight": [VOCAB_SIZE, _HIDDEN],
    }


class Sound:
    """A folder as it should be.

    Args:
        architectures: that can be made of these tensors.
    """

    def __init__(
        self, config: dict[str, Any], shapes: dict[str, list[int]], architectures: tuple[str, ...]
    ) -> None:
        names = list(shapes)
        halves = names[: len(names) // 2], names[len(names) // 2 :]
        self.config, self.architectures = config, architectures
        self.files = [_shard({name: shapes[name] for name in half}) for half in halves]
        pairs = zip(SHARDS, halves, strict=True)
        self.index = {"metadata": {}, "weight_map": {n: file for file, ns in pairs for n in ns}}

    def write(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*SHARDS, INDEX, "config.json", "generation_config.json"):
            self.mend(folder, name)

    def tamper(self, dice: random.Random, folder: Path) -> str:
        """Spoil one file of a sound folder; its name."""
        how = dice.randrange(10)
        if how < 6:
            config = self.config | {
                "architectures": [dice.choice(self.architectures) + "ForCausalLM"]
            }
            (folder / "config.json").write_bytes(tampered_json(dice, config))
            return "config.json"
        if how < 8:
            (folder / INDEX).write_bytes(tampered_json(dice, self.index))
            return INDEX
        if how == 8:
            (folder / "generation_config.json").write_bytes(tampered_json(dice, {"temperature": 1}))
            return "generation_config.json"
        shard = dice.randrange(2)
        header, data = self.files[shard]
        header = changed(dice, header)
        (folder / SHARDS[shard]).write_bytes(packed(json.dumps(header).encode(), data))
        return SHARDS[shard]

    def mend(self, folder: Path, name: str) -> None:
        """Undo `tamper`."""
        if name in SHARDS:
            header, data = self.files[SHARDS.index(name)]
            (folder / name).write_bytes(packed(json.dumps(header).encode(), data))
        elif name == INDEX:
            (folder / name).write_text(json.dumps(self.index))
        elif name == "config.json":
            (folder / name).write_text(json.dumps(self.config))
        else:
            (folder / name).write_text("{}")


def _shard(shapes: dict[str, list[int]]) -> tuple[dict[str, Any], bytes]:
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    return header, bytes(at)


DENSE = Sound(
    _CONFIG,
    _shapes({f"mlp.{name}": s for name, s in _MLP.items()}),
    ("Llama", "Mistral", "Qwen2", "Qwen3"),
)
EXPERTS = Sound(
    _CONFIG | _EXPERTS_FIELDS | {"architectures": ["Qwen3MoeForCausalLM"]},
    _shapes(
        {f"self_attn.{part}_norm": [_HEAD_DIM] for part in "qk"}
        | {"mlp.gate": [_EXPERTS, _HIDDEN]}
        | {f"mlp.experts.{i}.{name}": s for i in range(_EXPERTS) for name, s in _MLP.items()}
    ),
    ("Qwen3Moe", "Qwen3Moe", "Olmoe", "Qwen2Moe"),
)
