"""Writes models with recurrent layers as GGUF files, as llama.cpp's converter does.

Written from llama.cpp's conventions with gguf-py, apart from what reads the files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import MODEL_ARCH
from numpy.typing import NDArray
from safetensors.numpy import load_file

Array = NDArray[Any]
ARCHS = {
    "lfm2": MODEL_ARCH.LFM2,
    "lfm2_moe": MODEL_ARCH.LFM2MOE,
    "mamba2": MODEL_ARCH.MAMBA2,
    "granitemoehybrid": MODEL_ARCH.GRANITE_HYBRID,
    "falcon_h1": MODEL_ARCH.FALCON_H1,
    "nemotron_h": MODEL_ARCH.NEMOTRON_H_MOE,
    "qwen3_5_text": MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": MODEL_ARCH.QWEN35MOE,
    "qwen3_next": MODEL_ARCH.QWEN3NEXT,
    "kimi_linear": MODEL_ARCH.KIMI_LINEAR,
}
NAMES = {"mixer.dt": "ssm_dt", "feed_forward.expert_bias": "exp_probs_b"}


def write_gguf_hybrid(folder: Path, path: Path, type_: str = "F32", *, old: bool = False) -> Path:
    """The model in `folder`; matrices as `type_` where their rows allow.

    Args:
        old: as the first converters of Qwen3-Next and Kimi Linear did.
    """
    config = json.loads((folder / "config.json").read_text()) | {"old": old}
    arch = ARCHS[config["model_type"]]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _write_keys(writer, config, arch)
    names = gguf.get_tensor_name_map(arch, 100)
    kind = gguf.GGMLQuantizationType[type_]
    for name, values in _experts(load_file(folder / "model.safetensors"), config):
        for new, tensor in _converted(name, values.astype(np.float32), config):
            stem, _, suffix = new.rpartition(".")
            found = names.get_name(stem)
            whole = f"{found}.{suffix}" if found else names.get_name(new)
            assert whole, new
            tensor = np.ascontiguousarray(tensor)
            matrix = tensor.ndim > 1 and tensor.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0
            if type_ != "F32" and matrix and "ssm_" not in whole.replace("ssm_out", ""):
                packed = gguf.quantize(tensor, kind)
                writer.add_tensor(whole, packed, raw_dtype=kind)
            else:
                writer.add_tensor(whole, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_keys(w: gguf.GGUFWriter, c: dict[str, Any], arch: MODEL_ARCH) -> None:
    rope = c.get("rope_parameters") or {"rope_theta": 10000.0}
    w.add_block_count(c.get("num_hidden_layers") or len(c["layers_block_type"]))
    w.add_embedding_length(c["hidden_size"])
    w.add_context_length(512)
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps") or c.get("norm_eps") or c["layer_norm_epsilon"])
    if arch == MODEL_ARCH.MAMBA2:
        w.add_feed_forward_length(0)
        w.add_head_count(0)
        _add_ssm(w, c["conv_kernel"], c["num_heads"] * c["head_dim"], c["state_size"],
                 c["num_heads"], c["n_groups"])  # fmt: skip
        return
    types = c.get("layer_types") or c.get("layers_block_type") or ["hybrid"]
    w.add_head_count(c["num_attention_heads"])
    attends = [kind not in ("conv", "mamba", "linear_attention", "mlp", "moe") for kind in types]
    if "intermediate_size" in c:
        w.add_feed_forward_length(c["intermediate_size"])
    if arch == MODEL_ARCH.KIMI_LINEAR:
        w.add_head_count_kv(list(map(int, attends)))
        _write_kimi_keys(w, c)
        return
    w.add_head_count_kv([c["num_key_value_heads"] * on for on in attends])
    width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w.add_key_length(width)
    w.add_value_length(width)
    w.add_rope_freq_base(rope["rope_theta"])
    experts = c.get("n_routed_experts") or c.get("num_experts") or c.get("num_local_experts")
    if experts:
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
    if arch in (MODEL_ARCH.LFM2, MODEL_ARCH.LFM2MOE):
        w.add_shortconv_l_cache(c["conv_L_cache"])
    if arch == MODEL_ARCH.LFM2MOE:
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_leading_dense_block_count(c["num_dense_layers"])
        w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        w.add_expert_weights_scale(c["routed_scaling_factor"])
    if arch in (MODEL_ARCH.GRANITE_HYBRID, MODEL_ARCH.FALCON_H1):
        inner = c["mamba_n_heads"] * c["mamba_d_head"]
        _add_ssm(w, c["mamba_d_conv"], inner, c["mamba_d_state"], c["mamba_n_heads"],
                 c["mamba_n_groups"])  # fmt: skip
    if arch == MODEL_ARCH.GRANITE_HYBRID:
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
        w.add_expert_shared_feed_forward_length(c["shared_intermediate_size"])
        w.add_rope_scaling_finetuned(c.get("position_embedding_type") == "rope")
        w.add_rope_dimension_count(width)
    if arch == MODEL_ARCH.NEMOTRON_H_MOE:
        inner = c["mamba_num_heads"] * c["mamba_head_dim"]
        _add_ssm(w, c["conv_kernel"], inner, c["ssm_state_size"], c["mamba_num_heads"],
                 c["n_groups"])  # fmt: skip
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["moe_shared_expert_intermediate_size"])
        w.add_expert_shared_count(1)
        w.add_expert_weights_norm(c["norm_topk_prob"])
        w.add_expert_weights_scale(c["routed_scaling_factor"])
        w.add_expert_group_count(c["n_group"])
        w.add_expert_group_used_count(c["topk_group"])
        w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    if arch in (MODEL_ARCH.QWEN35, MODEL_ARCH.QWEN35MOE, MODEL_ARCH.QWEN3NEXT):
        heads = c["linear_num_value_heads"]
        _add_ssm(w, c["linear_conv_kernel_dim"], heads * c["linear_value_head_dim"],
                 c["linear_key_head_dim"], heads, c["linear_num_key_heads"])  # fmt: skip
        w.add_full_attention_interval(4)
        w.add_rope_dimension_count(width // 4)
    if arch in (MODEL_ARCH.QWEN35MOE, MODEL_ARCH.QWEN3NEXT):
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def _write_kimi_keys(w: gguf.GGUFWriter, c: dict[str, Any]) -> None:
    rank, rope, nope = (
        c[name] for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim")
    )
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_kda_head_dim(c["linear_head_dim"])
    w.add_kv_lora_rank(rank)
    w.add_rope_dimension_count(rope)
    w.add_key_length(rank + rope)
    w.add_key_length_mla(nope + rope)
    w.add_value_length_mla(c["v_head_dim"])
    w.add_expert_count(c["num_experts"])
    w.add_expert_used_count(c["num_experts_per_token"])
    w.add_expert_group_count(c["num_expert_group"])
    w.add_expert_group_used_count(c["topk_group"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["num_shared_experts"])
    w.add_leading_dense_block_count(c["mlp_layer_types"].index("sparse"))
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _add_ssm(
    w: gguf.GGUFWriter, conv: int, inner: int, state: int, heads: int, groups: int
) -> None:
    w.add_ssm_conv_kernel(conv)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(state)
    w.add_ssm_time_step_rank(heads)
    w.add_ssm_group_count(groups)


def _experts(tensors: dict[str, Array], config: dict[str, Any]) -> list[tuple[str, Array]]:
    """Return the tensors, those of experts stacked, under the names that gguf-py knows."""
    found: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for name in sorted(tensors, key=lambda name: [int(n) for n in re.findall(r"\d+", name)]):
        each = re.fullmatch(r"(.*layers\.\d+)\.\w+\.experts\.\d+\.(\w+)\.weight", name)
        if each is None:
            found[name] = tensors[name]
            continue
        mixtral = config["model_type"].startswith(("lfm2", "kimi"))  # its names of the parts
        block = "feed_forward" if mixtral else "mlp"
        layers = each[1].replace("backbone", "model")
        layers = layers.replace("model.", "") if block == "feed_forward" else layers
        stacks.setdefault(f"{layers}.{block}.experts.{each[2]}.weight", []).append(tensors[name])
    return [*found.items(), *((name, np.stack(parts)) for name, parts in stacks.items())]


def _converted(name: str, values: Array, c: dict[str, Any]) -> list[tuple[str, Array]]:
    """Return a tensor, or its parts, as the converter stores them."""
    kind = c["model_type"]
    if kind == "kimi_linear":
        return _of_kimi(name, values, c)
    if kind == "qwen3_next" and "in_proj_qkvz" in name and not c["old"]:
        return _apart(name, values, c)
    if kind.startswith("qwen3"):
        values = _tiled(name, values, c) if kind != "qwen3_next" else values
        if name.endswith("norm.weight") and "linear_attn.norm" not in name:
            values = values + 1
    if kind == "falcon_h1":
        values = _multiplied(name, values, c)
    if kind == "granitemoehybrid":
        if "input_linear" in name and "block_sparse" in name:
            stem = name.replace(".block_sparse_moe.input_linear.weight", "").removeprefix("model.")
            gate, up = np.split(values, 2, axis=1)
            return [(f"blk.{stem.split('.')[1]}.ffn_{part}_exps.weight", each)
                    for part, each in (("gate", gate), ("up", up))]  # fmt: skip
        if "shared_mlp" in name:
            return _shared(name, values, bool(c["num_local_experts"]))
        if re.search(r"\.[qk]_proj\.", name):
            heads = c["num_attention_heads" if ".q_" in name else "num_key_value_heads"]
            split = values.reshape(heads, 2, -1, *values.shape[1:])
            values = split.swapaxes(1, 2).reshape(values.shape)
    groups = c.get("mamba_n_groups") or c.get("n_groups") or 1
    if name.endswith(".A_log"):
        values = -np.exp(values)
    if name.endswith((".A_log", ".D")) and not kind.startswith("qwen"):
        values = values.reshape(-1, 1)
    elif name.endswith(".dt_bias"):
        return [(name.replace("dt_bias", "dt_proj.bias"), values)]
    elif "conv1d.weight" in name or "conv.conv.weight" in name:
        values = values[:, 0]
    elif name.endswith(("mixer.norm.weight", "mamba.norm.weight")):
        values = values.reshape(groups, -1)
    elif name.endswith((".expert_bias", "e_score_correction_bias")):
        name = name.replace("correction_bias", "correction") + ".bias"
        name = name.replace(".bias.bias", ".bias")
    elif name.endswith("shared_expert_gate.weight"):
        values = values[0]
    return [(name, values)]


def _of_kimi(name: str, values: Array, c: dict[str, Any]) -> list[tuple[str, Array]]:
    heads, nope, stem = c["num_attention_heads"], c["qk_nope_head_dim"], name.rpartition(".")[0]
    if name.endswith(".A_log"):
        return [(name, -np.exp(values).reshape(1, 1, -1, 1))]
    if name.endswith(".dt_bias"):
        return [(f"{stem}.dt_proj.bias", values)]
    if "conv1d" in name:
        return [(name, values.reshape(1, len(values), 1, -1))]
    if name.endswith("e_score_correction_bias"):
        return [(f"{stem}.e_score_correction.bias", values)]
    if "kv_b_proj" in name and not c["old"]:
        parts = np.split(values.reshape(heads, -1, c["kv_lora_rank"]), [nope], axis=1)
        named = ("k_b_proj", parts[0].swapaxes(1, 2)), ("v_b_proj", parts[1])
        return [(name.replace("kv_b_proj", part), each) for part, each in named]
    # Transformers renames the first layer, too, which has no experts.
    return [(re.sub(r"block_sparse_moe\.(gate|up|down)_proj", r"mlp.\1_proj", name), values)]


def _apart(name: str, values: Array, c: dict[str, Any]) -> list[tuple[str, Array]]:
    """Return q, k and v, and the gate: of each head of keys, they are rows one behind the other."""
    keys, dim = c["linear_num_key_heads"], c["linear_key_head_dim"]
    split = values.reshape(keys, -1, values.shape[1])
    gate = (split.shape[1] - 2 * dim) // 2
    parts = np.split(split, [dim, 2 * dim, 2 * dim + gate], axis=1)
    q, k, v, z = (part.reshape(-1, values.shape[1]) for part in parts)
    block = f"blk.{name.split('.')[2]}."
    return [(f"{block}attn_qkv.weight", np.concatenate([q, k, v])), (f"{block}attn_gate.weight", z)]


def _shared(name: str, values: Array, sparse: bool) -> list[tuple[str, Array]]:
    end, block = "_shexp" if sparse else "", f"blk.{name.split('.')[2]}.ffn_"
    if "output" in name:
        return [(f"{block}down{end}.weight", values)]
    gate, up = np.split(values, 2)
    return [(f"{block}gate{end}.weight", gate), (f"{block}up{end}.weight", up)]


def _tiled(name: str, values: Array, c: dict[str, Any]) -> Array:
    """Return values of a delta rule: the first head of each head of keys, the second …"""
    keys, heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
    if "linear_attn" not in name or name.endswith("linear_attn.norm.weight"):
        return values
    front = 2 * keys * c["linear_key_head_dim"] if "qkv" in name or "conv1d" in name else 0

    def rows(x: Array) -> Array:
        split = x[front:].reshape(keys, heads // keys, -1, *x.shape[1:]).swapaxes(0, 1)
        return np.concatenate([x[:front], split.reshape(x[front:].shape)])

    return rows(values.T).T if "out_proj" in name else rows(values)


def _multiplied(name: str, x: Array, c: dict[str, Any]) -> Array:
    """Return a weight of Falcon-H1 times its multipliers."""
    inner, shared = c["mamba_d_ssm"], c["mamba_n_groups"] * c["mamba_d_state"]
    into = c["attention_in_multiplier"]
    multipliers = {
        "down_proj": c["mlp_multipliers"][1],
        "gate_proj": c["mlp_multipliers"][0],
        "k_proj": c["key_multiplier"] * into,
        "q_proj": into,
        "v_proj": into,
        "o_proj": c["attention_out_multiplier"],
        "out_proj": c["ssm_out_multiplier"],
        "lm_head": c["lm_head_multiplier"],
        "embed_tokens": c["embedding_multiplier"],
    }
    if "in_proj" in name:
        sizes = [inner, inner, shared, shared, c["mamba_n_heads"]]
        return (
            x * np.repeat(np.float32(c["ssm_multipliers"]), sizes)[:, None] * c["ssm_in_multiplier"]
        )
    for part, factor in multipliers.items():
        if f".{part}." in f".{name}":
            return x * np.float32(factor)
    return x
