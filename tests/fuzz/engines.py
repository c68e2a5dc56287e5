"""Random engines, and random requests of them: what `tests.fuzz.combinations` tries.

All that is drawn is plain data, so that a case can be printed, cut down, and run again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.asked import EOS, VOCAB, Asked, draw_requests, some
from tests.fuzz.axes import add_axes

HAS_TORCH = PathFinder.find_spec("torch") is not None
"""Asked past the finder that skips tests which import torch."""
PLENTY = 2_000
"""Blocks beside those of the longest request, of which then none is evicted."""
WINDOW, LONG_WINDOW = 20, 150
SELF, HEAD = "SELF", "HEAD"
"""As the draft model: the model itself, or an EAGLE head for it."""
MTP_MODELS = (
    "glm4-moe",
    "qwen3",
    "qwen3-moe",
    "deepseek-v3",
    "qwen3-next",
    "qwen3.5",
    "qwen3.5-moe",
)
BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 256,
    "ffn_dim": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": 298,
    "eos_token_id": EOS,
}
_SLIDES = ["sliding_attention", "full_attention"]


def _rope(kind: str, **params: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **params}}


_LONGROPE = {
    "original_max_position_embeddings": 64,
    **_rope("longrope", short_factor=[1.0 + i / 9 for i in range(16)], long_factor=[4.0] * 16),
}
_EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 96, "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 24, "v_head_dim": 32, "n_routed_experts": 4, "first_k_dense_replace": 1,
    **_EXPERTS,
}  # fmt: skip
_DELTA = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
}  # fmt: skip
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_d_ssm": 256}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-mqa": {"model_type": "llama", "num_key_value_heads": 1, "attention_bias": True},
    "llama-wide-heads": {"model_type": "llama", "head_dim": 256, "num_key_value_heads": 1},
    "llama-dynamic": {"model_type": "llama", **_rope("dynamic", factor=2.0)}
    | {"max_position_embeddings": 256},
    "llama-yarn": {"model_type": "llama"}
    | _rope("yarn", factor=8.0, original_max_position_embeddings=64),
    "mistral-sliding": {"model_type": "mistral", "sliding_window": WINDOW},
    "mistral-long-window": {"model_type": "mistral", "sliding_window": LONG_WINDOW},
    "qwen2-half-sliding": {"model_type": "qwen2", "use_sliding_window": True}
    | {"sliding_window": LONG_WINDOW, "max_window_layers": 1, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3"},
    "phi3-longrope": {"model_type": "phi3", **_LONGROPE, "tie_word_embeddings": True},
    "gemma": {"model_type": "gemma", "num_key_value_heads": 1},
    "gemma2": {"model_type": "gemma2", "sliding_window": WINDOW, "query_pre_attn_scalar": 16}
    | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    "gemma3": {"model_type": "gemma3_text", "sliding_window": LONG_WINDOW}
    | {"query_pre_attn_scalar": 16, "layer_types": _SLIDES},
    "gemma4": {"model_type": "gemma4_text", "sliding_window": LONG_WINDOW, "layer_types": _SLIDES}
    | {"global_head_dim": 64, "hidden_size_per_layer_input": 0},
    "gemma4-experts": {"model_type": "gemma4_text", "sliding_window": WINDOW, **_EXPERTS}
    | {"layer_types": _SLIDES, "hidden_size_per_layer_input": 0, "enable_moe_block": True}
    | {"top_k_experts": 2},
    "gpt2": {"model_type": "gpt2", "n_positions": 2048},
    "opt": {"model_type": "opt"},
    "olmo2": {"model_type": "olmo2"},
    "starcoder2": {"model_type": "starcoder2", "sliding_window": WINDOW},
    "stablelm": {"model_type": "stablelm", "use_qkv_bias": True},
    "mixtral": {"model_type": "mixtral", "sliding_window": WINDOW, **_EXPERTS},
    "olmoe": {"model_type": "olmoe", **_EXPERTS},
    "qwen2-moe": {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 64, **_EXPERTS},
    "qwen3-moe": {"model_type": "qwen3_moe", "norm_topk_prob": True, **_EXPERTS},
    "smollm3": {"model_type": "smollm3", "no_rope_layers": [1, 0]},
    "granite": {"model_type": "granite", "embedding_multiplier": 12.0, "residual_multiplier": 0.22}
    | {"attention_multiplier": 0.0156, "logits_scaling": 8.0},
    "seed-oss": {"model_type": "seed_oss"},
    "olmo3": {"model_type": "olmo3", "sliding_window": WINDOW, "layer_types": _SLIDES},
    "glm4": {"model_type": "glm4"},
    "glm": {"model_type": "glm"},
    "exaone4": {"model_type": "exaone4", "sliding_window": WINDOW, "layer_types": _SLIDES},
    "cohere": {"model_type": "cohere"},
    "cohere2": {"model_type": "cohere2", "sliding_window": LONG_WINDOW, "layer_types": _SLIDES},
    "ernie4.5": {"model_type": "ernie4_5"},
    "internlm3": {"model_type": "internlm3"},
    "nemotron": {"model_type": "nemotron"},
    "arcee": {"model_type": "arcee"},
    "granite4": {"model_type": "granitemoehybrid", "num_local_experts": 0}
    | {"shared_intermediate_size": 256, "layer_types": ["full_attention"] * 2},
    "hunyuan": {"model_type": "hunyuan_v1_dense"},
    "ministral3": {"model_type": "ministral3"}
    | _rope("yarn", factor=8.0, original_max_position_embeddings=64, llama_4_scaling_beta=0.1),
    "glm4-moe": {"model_type": "glm4_moe", "n_routed_experts": 4, "topk_group": 2, **_EXPERTS}
    | {"n_group": 2},
    "ernie4.5-moe": {"model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 2, **_EXPERTS},
    "granitemoe": {"model_type": "granitemoe", "residual_multiplier": 0.22, **_EXPERTS},
    "gpt-oss": {"model_type": "gpt_oss", "sliding_window": WINDOW, **_EXPERTS},
    "llama4": {"model_type": "llama4_text", "intermediate_size_mlp": 256, "no_rope_layers": [1, 0]}
    | {"attention_chunk_size": LONG_WINDOW, "interleave_moe_layer_step": 2, "floor_scale": 64}
    | {"num_local_experts": 4},
    "phimoe": {"model_type": "phimoe", "sliding_window": WINDOW, "num_local_experts": 4},
    "deepseek-v2": {"model_type": "deepseek_v2", "q_lora_rank": None, "n_group": 2, **_LATENT}
    | {"topk_method": "group_limited_greedy", "topk_group": 1},
    "deepseek-v3": {"model_type": "deepseek_v3", "n_group": 2, "topk_group": 1, **_LATENT},
    "glm4-moe-lite": {"model_type": "glm4_moe_lite", **_LATENT},
    "minicpm3": {"model_type": "minicpm3", **_LATENT},
    "bitnet": {"model_type": "bitnet", "hidden_act": "relu2"},
    "gpt-neox": {"model_type": "gpt_neox", "num_key_value_heads": 4},
    "phi": {"model_type": "phi", "partial_rotary_factor": 0.4},
    "ministral": {"model_type": "ministral", "sliding_window": WINDOW, "layer_types": _SLIDES},
    "cwm": {"model_type": "cwm", "sliding_window": LONG_WINDOW, "layer_types": _SLIDES},
    "vaultgemma": {"model_type": "vaultgemma", "sliding_window": WINDOW}
    | {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 10.0},
    "youtu": {"model_type": "youtu", **_LATENT},
    "dots1": {"model_type": "dots1", "n_routed_experts": 4, "first_k_dense_replace": 1, **_EXPERTS}
    | {"sliding_window": WINDOW, "layer_types": _SLIDES},
    "minimax-m2": {"model_type": "minimax_m2", "num_local_experts": 4, **_EXPERTS},
    "exaone-moe": {"model_type": "exaone_moe", "sliding_window": WINDOW, "layer_types": _SLIDES}
    | _EXPERTS,
    "solar-open": {"model_type": "solar_open", "n_routed_experts": 4, **_EXPERTS},
    "granitemoeshared": {"model_type": "granitemoeshared", "shared_intermediate_size": 64}
    | _EXPERTS,
    "jais2": {"model_type": "jais2"},
    "hyperclovax": {"model_type": "hyperclovax", "residual_multiplier": 0.7},
    "granite-swa": {"model_type": "granite_swa", "sliding_window": WINDOW, "layer_types": _SLIDES},
    "granitemoe-swa": {"model_type": "granitemoe_swa", "sliding_window": LONG_WINDOW}
    | {"layer_types": _SLIDES, "shared_intermediate_size": 64, **_EXPERTS},
    "afmoe": {"model_type": "afmoe", "sliding_window": LONG_WINDOW, "layer_types": _SLIDES}
    | {"num_dense_layers": 1, **_EXPERTS},
    "mellum": {
        "model_type": "mellum",
        "sliding_window": WINDOW,
        "layer_types": _SLIDES,
        **_EXPERTS,
    },
    "flex-olmo": {"model_type": "flex_olmo", **_EXPERTS},
    "hunyuan-moe": {"model_type": "hunyuan_v1_moe", "moe_topk": 2, **_EXPERTS},
    "hy-v3": {"model_type": "hy_v3", **_EXPERTS},
    "apertus": {"model_type": "apertus", **_rope("default")},
    "mistral4": {"model_type": "mistral4", **_LATENT}
    | _rope("yarn", factor=8.0, original_max_position_embeddings=64, llama_4_scaling_beta=0.1),
    "gpt-bigcode": {"model_type": "gpt_bigcode", "n_positions": 2048},
    "gpt-neo": {"model_type": "gpt_neo", "attention_types": [[["global", "local"], 1]]}
    | {"window_size": WINDOW},
    "gptj": {"model_type": "gptj", "rotary_dim": 16, "n_positions": 2048},
    "falcon": {"model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon-7b": {"model_type": "falcon"},
    "helium": {"model_type": "helium"},
    "olmo": {"model_type": "olmo"},
    "nanochat": {"model_type": "nanochat"},
    "lfm2": {"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}
    | {"block_auto_adjust_ff_dim": False},
    "lfm2-moe": {"model_type": "lfm2_moe", "layer_types": ["conv", "full_attention"]}
    | {"num_dense_layers": 1, **_EXPERTS},
    "lfm3": {"model_type": "lfm3", "sliding_window": WINDOW}
    | {"layer_types": ["conv", "sliding_attention", "full_attention"], "num_hidden_layers": 3},
    "qwen3-next": {"model_type": "qwen3_next", **_DELTA, **_EXPERTS}
    | {"shared_expert_intermediate_size": 64},
    "qwen3.5": {"model_type": "qwen3_5_text", **_DELTA},
    "qwen3.5-moe": {"model_type": "qwen3_5_moe_text", **_DELTA, **_EXPERTS}
    | {"shared_expert_intermediate_size": 64},
    "kimi-linear": {"model_type": "kimi_linear", "linear_num_heads": 4, "linear_head_dim": 16}
    | {"layer_types": ["linear_attention", "full_attention"], **_LATENT, **_EXPERTS},
    "granite4-hybrid": {"model_type": "granitemoehybrid", "num_local_experts": 0, **_MAMBA}
    | {"shared_intermediate_size": 256, "layer_types": ["mamba", "attention"]},
    "falcon-h1": {"model_type": "falcon_h1", "key_multiplier": 0.6, **_MAMBA},
    "nemotron-h": {"model_type": "nemotron_h", "n_routed_experts": 4, "mamba_num_heads": 8}
    | {"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"], "n_groups": 2}
    | {"moe_shared_expert_intermediate_size": 64, "mamba_head_dim": 16, **_EXPERTS},
    "bamba": {"model_type": "bamba", "attn_layer_indices": [1], **_MAMBA},
    "mamba2": {"model_type": "mamba2", "num_heads": 8, "head_dim": 32, "n_groups": 2}
    | {"state_size": 16},
    "embedded": {},
}
"""config.json's fields beside `BASE`, of models whose weights are dummies; one is real."""
QUANTIZATIONS = (
    "int8", "int8_w8a16", "int4", "int4_g32", "int4_g64", "gptq", "gptq_actorder", "awq", "fp8",
    "fp8_w8a8", "fp8_e5m2", "fp8_block", "mxfp4", "nvfp4", "nf4", "fp4", "q4_0", "q4_1", "q5_1",
    "q8_0", "q2_k", "q3_k", "q4_k", "q6_k", "iq4_nl", "iq4_xs", "q5_0", "q5_k",
)  # fmt: skip


@dataclass
class World:
    """An engine and what befalls it.

    Attributes:
        model: of `MODELS`.
        numbers: fields of `EngineArgs` that decide what is computed.
        flags: those that decide how, and change no bit.
        resets: steps before which the prefix cache is emptied.
        reloads: (step, adapter): before it the adapter is unloaded, and loaded anew.
        failures: steps whose forward pass raises.
        oracle: drafts are mostly the right tokens.
        again: all are asked a second time: of the "same" engine, of one that was "asleep" in
            between, or of one that was "restarted".
    """

    model: str
    numbers: dict[str, Any]
    flags: dict[str, Any]
    asked: list[Asked]
    resets: list[int] = field(default_factory=list)
    reloads: list[tuple[int, int]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    oracle: bool = False
    again: str | None = None


def draw_world(random: Random) -> World:
    """A world in which many features meet."""
    model = random.choice(list(MODELS))
    long = random.random() < 0.08 and model not in ("llama-dynamic", "embedded")
    numbers = _numbers(random, model, long)
    world = World(model, numbers, {}, draw_requests(random, long=long))
    world.flags = _flags(random, world)
    if random.random() < 0.3:
        world.resets = sorted(random.sample(range(1, 40), random.randint(1, 3)))
    if random.random() < 0.25:
        world.failures = sorted(random.sample(range(1, 60), random.randint(1, 8)))
    if any(asked.adapter for asked in world.asked) and random.random() < 0.4:
        world.reloads = [(random.randint(1, 30), random.randint(1, 3)) for _ in range(3)]
    if random.random() < 0.5:
        world.flags["speculative_config"] = speculation(random, numbers, draft_methods(model))
        world.oracle = random.random() < 0.5
    add_axes(Random(random.random()), world)
    return world


def draft_methods(model: str) -> list[str]:
    """Return the methods by which drafts for a model of `MODELS` can be made."""
    heads = ["eagle", "eagle3"] if MODELS[model] else []
    return ["ngram", "suffix", "draft_model", *heads, *(["mtp"] if model in MTP_MODELS else [])]


def speculation(random: Random, numbers: dict[str, Any], methods: list[str]) -> dict[str, Any]:
    """Draw a speculative config with one of the methods."""
    most = random.choice([1, 2, 4, 7])
    config: dict[str, Any] = {
        "method": random.choice(methods),
        "num_speculative_tokens": most,
    }
    if config["method"] == "draft_model":
        config |= {"model": SELF, "quantization": numbers.get("quantization")}
    elif config["method"] in ("eagle", "eagle3"):
        config["model"] = HEAD
    elif config["method"] == "ngram":
        config |= {"prompt_lookup_min": 1, "prompt_lookup_max": random.choice([1, 3])}
    elif config["method"] == "suffix":
        config |= {"suffix_decoding_max_cached_requests": random.choice([0, 1, 100])}
    if random.random() < 0.8:  # else predicted times decide
        config["num_speculative_tokens_per_batch_size"] = [[1, 16, most]]
    return config


def drafting_by(model: str, flags: dict[str, Any]) -> dict[str, Any]:
    """Return `flags` with the folder of the draft model or head, if they have one."""
    drafts = flags.get("speculative_config")
    if not drafts or drafts.get("model") not in (SELF, HEAD):
        return flags
    if drafts["model"] == HEAD:
        model = _write_head(Path(f"{model}-head"), drafts["method"])
    return {**flags, "speculative_config": {**drafts, "model": model}}


def _write_head(folder: Path, method: str) -> str:
    changes: dict[str, Any] = {"model_type": "llama", "num_hidden_layers": 1}
    if method == "eagle3":
        changes |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCAB - 50}
        changes["eagle_aux_hidden_state_layer_ids"] = [0, 1]
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BASE | changes))
    return str(folder)


def draw_numbers(random: Random, model: str) -> dict[str, Any]:
    """Return types of weights, activations, keys and values for one of `MODELS`, or another."""
    numbers: dict[str, Any] = {
        "dtype": random.choice(["float32", "bfloat16", "bfloat16", "float16"])
    }
    if random.random() < 0.5:
        names = [name for name in QUANTIZATIONS if name != "gptq_actorder" or model != "embedded"]
        numbers["quantization"] = random.choice(names)
    if random.random() < 0.5:
        kinds = ["bf16", "int8", "fp8", "fp8_e5m2"]
        if "kv_lora_rank" not in MODELS.get(model, {}):
            kinds.append("int4")
        numbers["kv_cache_dtype"] = random.choice(kinds)
        if numbers["kv_cache_dtype"].startswith("fp8") and random.random() < 0.4:
            numbers["calculate_kv_scales"] = True
    return numbers


def _numbers(random: Random, model: str, long: bool) -> dict[str, Any]:
    numbers: dict[str, Any] = {"max_model_len": 2048 if long else 512}
    numbers |= draw_numbers(random, model)
    if random.random() < 0.1 and not long and HAS_TORCH:
        numbers |= {"ops": "reference", "num_threads": 1}
    return numbers


def _flags(random: Random, world: World) -> dict[str, Any]:
    asked, numbers = world.asked, world.numbers
    size = random.choice([8, 16, 32])
    seats = random.choice([1, 2, 3, 5, 5, 16])
    flags: dict[str, Any] = {
        "block_size": size,
        "max_num_seqs": seats,
        "enable_prefix_caching": random.random() < 0.75,
    }
    if random.random() < 0.7:
        chunk = random.choice([1, 7, 16, 37, 64, 200])
        flags["max_num_batched_tokens"] = max(seats, chunk)
    longest = max(len(a.prompt) + a.params["max_tokens"] for a in asked)
    blocks = -(-longest // size)
    flags["num_gpu_blocks_override"] = blocks + random.choice([0, 0, 1, 2, 3, 6, 12, PLENTY])
    flags |= some(
        random,
        0.35,
        {
            "async_scheduling": [True],
            "num_scheduler_steps": [2, 3, 5],
            "scheduling_policy": ["priority", "lpm"],
            "enforce_eager": [True],
            "num_threads": [1, 2],
            "prefix_caching_hash_algo": ["sha256"],
            "swap_space": [0.0001, 0.0005, 0.01],
        },
    )
    flags |= {name: numbers[name] for name in flags if name in numbers}
    if "swap_space" in flags:
        flags["preemption_mode"] = random.choice(["swap", "swap", "auto"])
    if flags["enable_prefix_caching"] and random.random() < 0.3:
        flags["kv_offloading_size"] = random.choice([0.0001, 0.0005, 0.002])
        if random.random() < 0.5:
            flags["kv_offloading_dir"] = "TMP"
    if "max_num_batched_tokens" not in flags and random.random() < 0.3:
        flags["max_itl_stretch"] = random.choice([1.0, 1.5, 4.0])
    if random.random() < 0.2 and numbers.get("ops") != "reference":
        flags["cpu_offload_gb"] = 0.00015
    if any(a.adapter for a in asked):
        flags["max_loras"] = random.randint(1, 3)
        if random.random() < 0.5:
            flags["max_cpu_loras"] = flags["max_loras"] + random.randint(0, 2)
    elif random.random() < 0.1:
        flags["enable_lora"] = True
    return flags


def write_model(folder: Path, name: str) -> str:
    """What to call the model; most are a folder whose config.json says the shape."""
    if not MODELS.get(name):
        return name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(BASE | MODELS[name]))
    return str(folder)
