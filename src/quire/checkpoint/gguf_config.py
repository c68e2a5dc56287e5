"""Translate GGUF metadata to the content of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quire.checkpoint import gguf_hybrids
from quire.checkpoint.gguf import GGUFDescription
from quire.checkpoint.gguf_experts import EXPERTS, LATENT, latent
from quire.checkpoint.gguf_families import (
    CHANGES,
    MISSING,
    Metadata,
    gemma4,
    rotated_part,
    sliding_types,
)
from quire.checkpoint.gguf_names import NAMES, WIDEST_LAYERS
from quire.checkpoint.gguf_rope import rope_scaling
from quire.core.errors import UnsupportedModelError

_EXPERTS = EXPERTS | gguf_hybrids.EXPERTS
_EITHER = ("llama", "granitehybrid", "gemma4")
"""Architectures with experts or without."""
_ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "<EOT>", "[EOT]",
    "<|endoftext|>", "<|end_of_text|>", "<end_of_utterance>", "<|return|>", "<|call|>",
    "<|flush|>", "<|calls|>",
}  # fmt: skip
"""Tokens that end a text or a turn, but see `_GO_ON`."""
_GO_ON = {"<|return|>", "<|flush|>"}
"""Where a file has one of them, `<|end|>` ends only a part of the answer (gpt-oss, Solar Open)."""
_CONTROL = 3
"""A token's type."""
_DTYPES = {"F32": "float32", "F16": "float16"}
_PARTLY_ROTATED = (
    "phi3", "stablelm", "glm4", "glm4moe", "nemotron", "qwen35", "qwen35moe", "qwen3next",
)  # fmt: skip
_UNROTATED = ("nemotron_h", "nemotron_h_moe")
_LAYER_NORMED = ("stablelm", "starcoder2", "command-r", "cohere2", "nemotron", "jais2")


def hf_config(file: GGUFDescription) -> dict[str, Any]:
    """Return the config.json of the model in `file`.

    Raises:
        UnsupportedModelError: the architecture, or a feature of it, is unknown.
        CheckpointError: a needed key is missing or of the wrong type; names it.
    """
    meta = Metadata(file)
    _check_architecture(meta)
    common = {
        "model_type": NAMES[meta.architecture].model_type,
        "vocab_size": meta.extent("token_embd.weight", 0),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "torch_dtype": _dtype(file),
        "bos_token_id": meta.token("bos_token_id"),
        "eos_token_id": _eos(meta),
    }
    if meta.architecture in _WHOLE:
        return common | _WHOLE[meta.architecture](meta)
    config = common | _llama(meta)
    experts = meta.integer("expert_count", 0)
    changes = (_EXPERTS if experts else _CHANGES).get(meta.architecture)
    return config if changes is None else config | changes(meta, config)


def _check_architecture(meta: Metadata) -> None:
    name, file = meta.architecture, meta.file.path.name
    if name not in NAMES:
        raise UnsupportedModelError(
            f"{file}: GGUF architecture {name!r} is not supported.",
            fix=f"Quire reads {', '.join(sorted(NAMES))}.",
        )
    count = meta.integer("expert_count", 0)
    if name not in _EITHER and bool(count) != (name in _EXPERTS):
        raise UnsupportedModelError(
            f"{file} is of the architecture {name!r}, and has {count} experts.",
            fix=f"Experts are in files of {', '.join(_EXPERTS)}, and in all of them but "
            f"{' and '.join(_EITHER)}.",
        )


def generation_config(config: dict[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generation_config.json of a GGUF file: begin and end tokens.

    Many files name no end of a turn, so control tokens with one of the usual names are ends, too,
    as in llama.cpp.
    """
    tokens, types = (metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    found = config["eos_token_id"]
    ends = found if isinstance(found, list) else [found]
    if isinstance(tokens, list) and isinstance(types, list):
        spelled = {t: i for i, t in enumerate(tokens) if isinstance(t, str) and t in _ENDS}
        if not _GO_ON.isdisjoint(spelled):
            spelled.pop("<|end|>", None)
        ends = [*ends, *(i for i in spelled.values() if types[i : i + 1] == [_CONTROL])]
    ends = list(dict.fromkeys(token for token in ends if token is not None))
    roles = {"bos_token_id": config["bos_token_id"], "eos_token_id": ends or None}
    return {key: value for key, value in roles.items() if value is not None}


def _eos(meta: Metadata) -> int | list[int] | None:
    """Return the end-of-text token and, if different, the end of a chat turn."""
    found = [meta.token(key) for key in ("eos_token_id", "eot_token_id")]
    tokens = list(dict.fromkeys(token for token in found if token is not None))
    return tokens if len(tokens) > 1 else next(iter(tokens), None)


def _dtype(file: GGUFDescription) -> str:
    """Return the dtype of the weights; bfloat16 if quantized, as such models were trained in it."""
    return _DTYPES.get(file.tensors["token_embd.weight"].type.name, "bfloat16")


def _gpt2(meta: Metadata) -> dict[str, Any]:
    return {
        "activation_function": "gelu_new",
        "layer_norm_epsilon": meta.number("attention.layer_norm_epsilon"),
        "n_ctx": meta.integer("context_length"),
        "n_embd": meta.integer("embedding_length"),
        "n_head": meta.integer("attention.head_count"),
        "n_inner": meta.integer("feed_forward_length"),
        "n_layer": meta.integer("block_count"),
        "n_positions": meta.integer("context_length"),
    }


def _llama(meta: Metadata) -> dict[str, Any]:
    heads = meta.integer("attention.head_count")
    hidden = meta.integer("embedding_length")
    if not heads or hidden % heads:
        raise meta.damaged(f"{hidden} hidden elements do not divide into {heads} heads")
    if meta.architecture in LATENT:
        widths = latent(meta, heads)
        rotated = widths["qk_rope_head_dim"]
    else:
        rotated = _head_dim(meta, hidden // heads)
        groups = meta.integer("attention.head_count_kv", heads)
        widths = {"head_dim": rotated, "num_key_value_heads": groups}
    norm = "layer_norm" if meta.architecture in _LAYER_NORMED else "layer_norm_rms"
    # All layers of these are sparse.
    inner = 0 if meta.architecture in ("qwen35moe", "qwen3next") else MISSING
    config = {
        "attention_bias": "blk.0.attn_q.bias" in meta.file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in meta.file.tensors,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": meta.integer("feed_forward_length", inner),
        "max_position_embeddings": meta.integer("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": meta.integer("block_count")
        - meta.integer("nextn_predict_layers", 0),  # which draft, and follow the others
        "rms_norm_eps": meta.number(f"attention.{norm}_epsilon"),
        "rope_theta": meta.number("rope.freq_base", 10000.0),
        "rope_scaling": rope_scaling(meta, rotated),
    } | widths
    window = meta.integer("attention.sliding_window", 0)
    if meta.architecture == "mistral":
        config["sliding_window"] = window or None  # absent would mean Mistral's default
    if window:
        config["sliding_window"] = window
        if meta.architecture == "llama" and not meta.integer("expert_count", 0):  # Mistral
            config["model_type"] = "mistral"
        elif meta.architecture.startswith("qwen"):
            config["use_sliding_window"] = True
    return config


def _head_dim(meta: Metadata, default: int) -> int:
    head_dim: int = meta.integer("attention.key_length", default)
    if not head_dim or meta.integer("attention.value_length", head_dim) != head_dim:
        raise UnsupportedModelError(
            f"{meta.file.path.name}: heads of values are not as wide as those of keys, or empty.",
            fix="Quire has no such architecture; use another model.",
        )
    rotary_dim = meta.integer("rope.dimension_count", head_dim)
    if rotary_dim != head_dim and meta.architecture not in (*_PARTLY_ROTATED, *_UNROTATED):
        raise UnsupportedModelError(
            f"{meta.file.path.name}: {rotary_dim} of {head_dim} elements of a head are rotated.",
            fix="Quire rotates whole heads in this architecture; use another model.",
        )
    return head_dim


def _phi3(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """Return Phi-3's own fields; the MLP's width is half of the merged matrix's rows."""
    head_dim = config["head_dim"]
    rotary_dim = meta.integer("rope.dimension_count", head_dim)
    scaling = config["rope_scaling"] or {}
    trained = {k: scaling[k] for k in ("original_max_position_embeddings",) if k in scaling}
    return trained if rotary_dim == head_dim else trained | rotated_part(rotary_dim, head_dim)


def _layer_normed(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of architectures that name a Llama's fields differently."""
    eps, bias = config["rms_norm_eps"], config["attention_bias"]
    if meta.architecture == "starcoder2":
        return {"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": eps, "use_bias": bias}
    head_dim = config["head_dim"]
    return {
        "layer_norm_eps": eps,
        "use_qkv_bias": bias,
        "use_parallel_residual": meta.flag("use_parallel_residual"),
        **rotated_part(meta.integer("rope.dimension_count", head_dim), head_dim),
    }


def _gemma(meta: Metadata, config: dict[str, Any]) -> dict[str, Any]:
    """Return Gemma's fields; those missing in the file are constants of the family."""
    heads, head_dim = config["num_attention_heads"], config["head_dim"]
    changes: dict[str, Any] = {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}
    if meta.architecture == "gemma":
        return changes
    wide = config["num_hidden_layers"] == WIDEST_LAYERS[meta.architecture]
    changes["query_pre_attn_scalar"] = config["hidden_size"] / heads if wide else head_dim
    if meta.architecture == "gemma2":
        return changes | {
            "attn_logit_softcapping": meta.number("attn_logit_softcapping", 50.0),
            "final_logit_softcapping": meta.number("final_logit_softcapping", 30.0),
            "sliding_window": meta.integer("attention.sliding_window", 4096),
        }
    return changes | {
        "final_logit_softcapping": meta.number("final_logit_softcapping", None),
        "sliding_window": meta.integer("attention.sliding_window"),
        **_sliding_layers(meta, config["num_hidden_layers"]),
        "rope_theta": meta.number("rope.freq_base", 1000000.0),
        "rope_local_base_freq": meta.number("rope.freq_base_swa", 10000.0),
    }


def _sliding_layers(meta: Metadata, layers: int) -> dict[str, Any]:
    """Return which of Gemma 3's layers slide: a number, or one bool per layer."""
    types = sliding_types(meta, layers)
    if types is not None:
        return {"layer_types": types}
    return {"sliding_window_pattern": meta.integer("attention.sliding_window_pattern", 6)}


_WHOLE = {"gpt2": _gpt2, "mamba2": gguf_hybrids.mamba2, "gemma4": gemma4}
"""Architectures that share no fields with Llama."""
_CHANGES = CHANGES | gguf_hybrids.CHANGES | {
    "phi3": _phi3,
    **dict.fromkeys(("stablelm", "starcoder2"), _layer_normed),
    **dict.fromkeys(("gemma", "gemma2", "gemma3"), _gemma),
}  # fmt: skip
