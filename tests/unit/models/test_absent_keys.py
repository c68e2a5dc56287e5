"""What an absent or null key of config.json means: the same as in Transformers' config classes.

Each key of each architecture is taken away, and set to null. Quire then reads what Transformers
reads, or refuses the config and names the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from quire.core.errors import QuireError
from quire.core.model_config import ModelConfig
from quire.models.registry import HF_CLASSES, model_config
from tests.truth.choices import ARCHITECTURES
from tests.truth.keys import ABSENT, FULL, SLIDING
from tests.truth.recurrent import RECURRENT

_SIZES: dict[str, Any] = {
    "vocab_size": 300_000,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 32,
}
_TYPES = [FULL, SLIDING] * 3
_TWO_ROPES = {
    FULL: {"rope_type": "default", "rope_theta": 5e5},
    SLIDING: {"rope_type": "default", "rope_theta": 2e4},
}
_ROPES: dict[str, dict[str, Any]] = {
    "": {},
    "flat": {"rope_theta": 3e4, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "nested": {"rope_parameters": _TWO_ROPES, "rope_scaling": None},
}
_UNTESTED = ("is_causal", "dtype", "torch_dtype", "use_bidirectional_attention")
_VALUES = {
    **dict.fromkeys(
        ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 24
    ),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps"), 1e-3),
    "bos_token_id": 7,
    "eos_token_id": 9,
    "layer_types": _TYPES,
    "mlp_layer_types": ["dense", "sparse"] * 3,
    "layer_rope_theta": [0, 3e4] * 3,
    "attention_types": [[["global", "local"], 3]],
    "no_rope_layers": [1, 0, 1, 1, 0, 1],
}
"""Values of keys in place of the first ones in `tests.truth`."""
_PARTLY = {"partial_rotary_factor": 1.0}
_OTHERWISE: dict[str, dict[str, Any]] = {
    "phi": _PARTLY | {"tie_word_embeddings": False},
    "phi3": {
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 64,
        "rope_scaling": None,
    },
    "phimoe": {"tie_word_embeddings": False, "rope_scaling": None},
    **dict.fromkeys(("glm", "glm4", "nemotron"), _PARTLY),
    "stablelm": {"hidden_size": 512, "head_dim": ABSENT},
    "gpt_neox": {"hidden_size": 256},
    "internlm3": {"attention_bias": False},
    "bitnet": {"num_attention_heads": 20, "hidden_size": 160, "num_key_value_heads": 4},
    "gemma3_text": {"rope_theta": 5e5, "rope_local_base_freq": 2e4},
    "gemma4_text": {
        "vocab_size": 262_144,
        "vocab_size_per_layer_input": 262_144,
        "num_kv_shared_layers": 2,
        "enable_moe_block": ABSENT,
    },
    "llama4_text": {"moe_layers": ABSENT, "interleave_moe_layer_step": 2},
    "mellum": {"rope_scaling": ABSENT},
    "deepseek_v3": {"n_group": 4, "topk_group": 2},
    "glm4_moe_lite": {"mlp_layer_types": ["dense", "sparse"] * 3},
    "opt": {"word_embed_proj_dim": 128},
    **{kind: {"clip_qkv": ABSENT} for kind in ("olmo", "olmoe")},
    "modernbert": {"global_rope_theta": 5e5, "local_rope_theta": 2e4},
}
"""Keys that `tests.truth` has in another way, or not; `ABSENT` leaves one out."""


def _whole(kind: str) -> dict[str, Any]:
    """A config with all keys of an architecture."""
    made = ARCHITECTURES[kind]
    config = {made.sizes.get(name, name): size for name, size in _SIZES.items()}
    if made.heads:
        config |= {"num_key_value_heads": 2, "head_dim": 8}
    for name, values in made.keys.items():
        first = next((value for value in values if value not in (ABSENT, None)), ABSENT)
        config[name] = ABSENT if name in _UNTESTED or first is ABSENT else _VALUES.get(name, first)
    config |= _ROPES[made.rope] | _OTHERWISE.get(kind, {})
    return {name: value for name, value in config.items() if value is not ABSENT}


CONFIGS = {kind: _whole(kind) for kind in ARCHITECTURES if kind not in RECURRENT}
CONFIGS["granitemoehybrid"] = {k: v for k, v in CONFIGS["granite"].items() if k != "mlp_bias"} | {
    "num_local_experts": 0,
    "shared_intermediate_size": 96,
    "position_embedding_type": "rope",
    "layer_types": [FULL] * 6,
}
REQUIRED = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions", "ffn_dim", "dim",
    "hidden_dim", "n_layers", "n_heads", "num_layers", "num_heads",
}  # fmt: skip
"""Sizes, for which Transformers has defaults, too: Quire refuses a config without them."""
UNSUPPORTED_DEFAULTS = {
    "qwen2": ["use_sliding_window"],
    "qwen3": ["use_sliding_window"],
    "qwen2_moe": ["use_sliding_window"],
    "qwen3_moe": ["use_sliding_window"],
    "deepseek_v2": ["num_experts_per_tok", "n_group", "topk_group"],
    "gemma4_text": ["layer_types"],
    "hunyuan_v1_moe": ["num_experts"],
    "mistral4": ["n_group"],
    "smollm3": ["use_sliding_window", "sliding_window"],
    "gpt_neo": ["attention_types"],
    "gptj": ["rotary_dim"],
    "helium": ["num_key_value_heads"],
}
"""Keys whose default is something that Quire does not compute, or that contradicts others."""
_LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu", "mistral4")
_TANH = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"}


def transformers_reads(kind: str, config: Any) -> dict[str, Any]:
    """What Transformers' config says of the fields of a `ModelConfig`."""
    get = lambda *names, default=None: next(  # noqa: E731
        (getattr(config, name) for name in names if hasattr(config, name)), default
    )
    heads = config.num_attention_heads
    activation = get("hidden_activation", "hidden_act", "activation_function", "activation")
    layers = config.num_hidden_layers
    window = get("sliding_window", "attention_chunk_size", "window_size")
    types = (
        get("layer_types", "attention_layers")
        or ["sliding_attention" if window else "full_attention"] * layers
    )
    found = {
        "num_key_value_heads": get("num_key_value_heads", default=heads),
        "head_dim": get("head_dim", default=None) or config.hidden_size // heads,
        "norm_eps": get(
            "rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"
        ),
        "activation": "gelu_tanh" if activation in _TANH else activation,
        "token_types": get("type_vocab_size", default=0),
        "attention_softcap": get("attn_logit_softcapping"),
        "logits_softcap": get("final_logit_softcapping"),
        "windows": [None if kind in ("full_attention", "global") else window for kind in types],
        "qkv_bias": get("attention_bias", "enable_bias", "use_bias", "use_qkv_bias"),
        "mlp_bias": get("mlp_bias", "enable_bias", "use_bias"),
        "norm_bias": get("norm_bias"),
        "classifier_bias": get("classifier_bias"),
        "classifier_activation": get("classifier_activation"),
        "attention_scale": get("query_pre_attn_scalar") and config.query_pre_attn_scalar**-0.5,
        "embedding_scale": get("embedding_multiplier"),
        "residual_scale": get("residual_multiplier"),
        "logits_scale": get("logit_scale"),
        "output_bias": get("attention_out_bias"),
    }
    needed = ("num_experts_per_tok", "n_group", "topk_group", "v_head_dim", "route_scale")
    if None in [get(name, default=1) for name in needed]:
        raise ValueError("Transformers cannot compute this")
    if experts := get("num_local_experts", "num_experts"):
        dense, step = get("mlp_only_layers") or (), get("decoder_sparse_step", default=1)
        step = get("moe_layer_interval", "interleave_moe_layer_step", default=step)
        first = get("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0)
        dense = dense or range(get("moe_layer_end_index", default=layers) + 1, layers)
        unit = "unit" if kind == "llama4_text" else "head"
        found["qk_norm"] = unit if get("use_qk_norm") else None
        found["qkv_bias"] = get("attention_bias", "qkv_bias")
        types = get("mlp_layer_types") or ["sparse"] * layers
        found["moe"] = (
            experts,
            config.num_experts_per_tok,
            get("moe_intermediate_size", "intermediate_size"),
            bool(get("norm_topk_prob", default=kind != "llama4_text")),
            get("n_shared_experts", default=0) * config.moe_intermediate_size
            if kind in ("glm4_moe", "dots1", "solar_open", *_LATENT)
            else config.num_shared_experts * config.moe_intermediate_size
            if kind in ("exaone_moe", "afmoe", "hy_v3")
            else get("moe_num_shared_experts") * config.moe_intermediate_size
            if kind == "ernie4_5_moe"
            else config.intermediate_size
            if kind in ("llama4_text", "hunyuan_v1_moe")
            else get("shared_expert_intermediate_size", "shared_intermediate_size", default=0),
            [
                i not in dense and (i + 1) % step == 0 and i >= first and types[i] == "sparse"
                for i in range(layers)
            ],
            [get(name, default=1) for name in ("n_group", "topk_group")]
            + [get("routed_scaling_factor", "route_scale", "router_scaling_factor", default=1)],
        )
    if kind in _LATENT:
        found |= {"num_key_value_heads": 1, "head_dim": None}
        names = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
        found["latent"] = [*(get(name) for name in names), get("v_head_dim")]
        found["interleaved"] = get("rope_interleave", default=kind != "minicpm3")
        if get("topk_method") == "greedy":
            found["moe"][-1][:2] = [1, 1]
    if kind == "minicpm3":
        found["embedding_scale"] = float(config.scale_emb)
        found["residual_scale"] = config.scale_depth / layers**0.5
        found["logits_scale"] = config.dim_model_base / config.hidden_size
    if kind.startswith("granite"):
        found["attention_scale"] = config.attention_multiplier
        found["logits_scale"] = 1 / config.logits_scaling
    if hasattr(config, "multi_query"):
        shared = config.multi_query and not get("new_decoder_architecture")
        found["num_key_value_heads"] = 1 if shared else get("num_kv_heads", default=heads)
    if kind == "apertus":
        found["activation"] = "relu2"  # in whose place it has xIELUs
    if kind == "hyperclovax":
        found["attention_scale"] = config.attention_multiplier
        found["logits_scale"] = config.logits_scaling
    if kind == "gpt_oss":
        found["activation"] = "swigluoai"
    if kind == "smollm3":
        found["rotated_layers"] = tuple(number == 1 for number in config.no_rope_layers)
    if kind in ("distilbert", "opt"):
        found["norm_eps"] = None
    if kind in ("roberta", "xlm-roberta"):
        found["learned_positions_offset"] = config.pad_token_id + 1
    if kind not in ("bert", "roberta", "xlm-roberta", "distilbert", "modernbert"):
        eos = config.eos_token_id
        found |= {"tie_word_embeddings": config.tie_word_embeddings}
        found |= {"bos_token_id": config.bos_token_id}
        ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
        found |= {"eos_token_ids": tuple(ends)}
    rope = get("rope_parameters")
    if rope:
        nested = "full_attention" in rope
        found["rope"] = (rope["full_attention"] if nested else rope)["rope_theta"]
        if nested:
            found["local_rope"] = rope["sliding_attention"]["rope_theta"]
    return {name: value for name, value in found.items() if value is not None}


def quire_reads(kind: str, model: ModelConfig, names: Any) -> dict[str, Any]:
    others = ("windows", "interleaved")
    own: dict[str, Any] = {name: getattr(model, name) for name in names if name not in others}
    if (latent := model.latent) is not None and model.rope is not None:
        own["latent"] = [latent.q_rank, latent.rank, latent.rope_dim, latent.nope_dim]
        own["latent"].append(latent.value_dim)
        own["interleaved"] = model.rope.interleaved
    for name in ("rope", "local_rope"):
        if own.get(name) is not None:
            own[name] = own[name].theta
    if model.moe is not None:
        own["moe"] = (
            model.moe.num_experts,
            model.moe.route.top_k,
            model.moe.intermediate_size,
            model.moe.route.renormalize,
            model.moe.shared_size,
            [model.moe.in_layer(i) for i in range(model.num_hidden_layers)],
            [model.moe.route.num_groups, model.moe.route.top_groups, model.moe.route.scale],
        )
    for name in ("embedding_scale", "residual_scale", "logits_scale"):
        own[name] = 1.0 if own.get(name) is None else own[name]
    if own.get("attention_scale") is None:
        own["attention_scale"] = model.head_dim**-0.5
    own["activation"] = model.activation.removesuffix("_mul")
    behind = 1 if kind == "modernbert" else 0  # whose window counts one side, without the token
    own["windows"] = [
        None if model.window(i) is None else (model.window(i) or 0) - behind
        for i in range(model.num_hidden_layers)
    ]
    return own


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_missing_key_means_what_it_means_in_transformers(kind: str, tmp_path: Path) -> None:
    prefer = "ForCausalLM" if kind not in ("bert", "roberta", "modernbert") else "Model"
    names = [name for name, architecture in HF_CLASSES.items() if architecture == kind]
    class_name = next((name for name in names if name.endswith(prefer)), names[0])
    if kind in ("roberta", "xlm-roberta"):
        class_name = "RobertaModel" if kind == "roberta" else "XLMRobertaModel"
    config = CONFIGS[kind] | {"model_type": kind, "architectures": [class_name]}
    wrong = [
        f"{key} {how}: {problem}"
        for key in CONFIGS[kind]
        for how in ("absent", "null")
        for problem in _problems(kind, key, how, config, tmp_path)
    ]
    assert not wrong


def _problems(kind: str, key: str, how: str, config: dict[str, Any], folder: Path) -> Iterator[str]:
    """Yield what Quire reads otherwise than Transformers if a key is absent or null."""
    config = {name: value for name, value in config.items() if name != key}
    if how == "null":
        config[key] = None
    (folder / "config.json").write_text(json.dumps(config))
    try:
        expected = transformers_reads(kind, AutoConfig.from_pretrained(folder))
    except Exception:
        expected = None
    try:
        model = model_config(config)
    except QuireError as error:
        if key not in REQUIRED and key not in str(error):
            yield f"the error does not name it: {error}"
        if not (key in REQUIRED or how == "null" or key in UNSUPPORTED_DEFAULTS.get(kind, ())):
            yield f"refused: {error}"
        return
    if expected is None:
        return
    found = quire_reads(kind, model, expected)
    for name, value in expected.items():
        same = pytest.approx(value) if isinstance(value, float) else value
        if found[name] != same:
            yield f"{name} is {found[name]!r}, in Transformers {value!r}"


_OWN_LISTS = {
    "lfm2": ("full_attn_idxs", "block_ffn_dim_multiplier", "layer_types"),
    "bamba": ("attn_layer_indices",),
    "granitemoehybrid": ("layer_types",),
    "nemotron_h": ("layers_block_type",),
    "gemma4_text": ("per_layer_config",),
    "llama4_text": ("no_rope_layers",),
}
"""Keys that `CONFIGS` leaves out or holds behind a choice."""


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_values_of_a_wrong_type_are_refused_or_read(kind: str) -> None:
    config = CONFIGS[kind] | {"model_type": kind}
    for name in (*config, *_OWN_LISTS.get(kind, ())):
        for value in (True, 3, "x", [[1]], {"a": 1}, float("inf")):
            with suppress(QuireError):
                model_config(config | {name: value})
