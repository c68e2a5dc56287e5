"""Gemma 4 (text): Gemma 3 with other heads in the layers that attend to all, norms of values, last
layers that borrow keys and values, and an embedding of its own for each layer."""

from __future__ import annotations

from quire.core.errors import CheckpointError
from quire.core.layers import MoEConfig, RouteSpec
from quire.core.model_config import ModelConfig, RopeConfig
from quire.models import experts, hf
from quire.models import rope as ropes
from quire.models.architectures import gemma, gemma2, sliding

_PATTERN, _WINDOW, _FULL_HEAD_DIM, _OWN_INPUT, _KV_HEADS = 6, 512, 512, 256, 4
_VOCAB_SIZE = 262_144
_NORMS = ("attn_norm", "attn_post_norm", "mlp_norm", "mlp_post_norm", "norm")
_THETAS = {
    ropes.FULL: ("rope_theta", ropes.DEFAULT_THETA),
    ropes.SLIDING: ("rope_theta", ropes.DEFAULT_THETA),
}
_ROPES = {
    ropes.SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    ropes.FULL: {
        "rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1_000_000.0,
    },
}  # fmt: skip
_Q, _K, _V = (f"self_attn.{name}_proj" for name in "qkv")

NAMES = gemma2.NAMES.but(
    {
        "attn.q": (_Q,),
        "attn.qkk": (_Q, _K, _K),
        "own_input.gate": ("per_layer_input_gate",),
        "own_input.out": ("per_layer_projection",),
        "own_input_post_norm": ("post_per_layer_input_norm",),
        "end.factor": ("layer_scalar",),
        "mlp.router": ("router.proj",),
        "mlp.router.factors": ("router.per_expert_scale",),
        "mlp.router_norm.weight": ("router.scale",),
        "mlp.experts.gate_up": ("experts.{}.gate_proj", "experts.{}.up_proj"),
        "mlp.experts.down": ("experts.{}.down_proj",),
        "mlp.experts_norm": ("pre_feedforward_layernorm_2",),
        "mlp.experts_post_norm": ("post_feedforward_layernorm_2",),
        **experts.shared("mlp"),
        "mlp.shared_norm": ("pre_feedforward_layernorm",),
        "mlp.shared_post_norm": ("post_feedforward_layernorm_1",),
    },
    {
        "own_embed": "model.embed_tokens_per_layer",
        "own_project": "model.per_layer_model_projection",
        "own_norm": "model.per_layer_projection_norm",
    },
    stacked=experts.stacked("experts"),
    # Layers that borrow keys and values may have weights for them.
    ignored=rf"{gemma2.NAMES.ignored}|.*\.self_attn\.(?:[kv]_proj|k_norm)\..*",
)


def parse(config: hf.HFConfig) -> ModelConfig:
    hf.only(config, "attn_logit_softcapping", None, "scores without a cap")
    slides = (*sliding.pattern(config, _PATTERN)[:-1], False)  # Transformers sees to the last
    layers, borrowing = len(slides), hf.whole(config, "num_kv_shared_layers", 0)
    if borrowing and set(slides[: max(0, layers - borrowing)]) != set(slides):
        raise hf.wrong(
            "num_kv_shared_layers",
            borrowing,
            "so few that, by layer_types, each kind of layers has keys and values",
        )
    own_input, same = hf.whole(config, "hidden_size_per_layer_input", _OWN_INPUT), {}
    if own_input:
        rows = hf.integer(config, "vocab_size_per_layer_input", default=_VOCAB_SIZE)
        if rows != hf.integer(config, "vocab_size"):
            only = f"Quire computes only {config['vocab_size']}, the vocab_size"
            raise hf.unsupported("vocab_size_per_layer_input", rows, only)
        same = {"sublayers": (("attention", "mlp", "own_input"),) * layers}
    if config.get("use_bidirectional_attention") == "vision":  # text is causal
        config = {**config, "use_bidirectional_attention": None}
    full_heads = _full_heads(config, slides)
    rope, local_rope = _ropes(config, full_heads[1])
    wide = hf.flag(config, "use_double_wide_mlp", default=False)
    window = hf.integer(config, "sliding_window", default=_WINDOW)
    return gemma.parse(
        {name: value for name, value in config.items() if name != "per_layer_config"},
        activation_field="hidden_activation",
        kv_heads=_KV_HEADS,
        norms=(*_NORMS, *(("own_input_post_norm",) if own_input else ())),
        norm_gain="float32",
        attention_scale=1.0,
        qk_norm="head",
        v_norm=True,
        full_heads=full_heads,
        values_are_keys=hf.flag(config, "attention_k_eq_v", default=False),
        borrowing_layers=borrowing,
        borrower_mlp=2 * hf.integer(config, "intermediate_size") if wide and borrowing else None,
        own_input=own_input,
        layer_factors=True,
        rope=rope,
        local_rope=local_rope,
        moe=_experts(config),
        logits_softcap=gemma2.softcap(config, "final_logit_softcapping", None),
        **same,
        **sliding.windowed(window, slides),
    )


def _experts(config: hf.HFConfig) -> MoEConfig | None:
    """Return the experts that stand in each layer beside the feed-forward."""
    if not hf.flag(config, "enable_moe_block", default=False):
        return None
    count, top_k = hf.integer(config, "num_experts"), hf.integer(config, "top_k_experts")
    if top_k > count:
        raise hf.wrong("top_k_experts", top_k, f"at most {count}, the num_experts")
    return MoEConfig(
        count,
        hf.integer(config, "moe_intermediate_size"),
        RouteSpec(top_k),
        shared_size=hf.integer(config, "intermediate_size"),
        apart=True,
    )


def _full_heads(config: hf.HFConfig, slides: tuple[bool, ...]) -> tuple[int, int]:
    """Return the key-value heads of the layers that attend to all, and their width.

    Transformers writes them into `per_layer_config`; published files have `global_head_dim`.
    """
    kv_heads = hf.integer(config, "num_key_value_heads", default=_KV_HEADS)
    dim = hf.integer(config, "head_dim", default=gemma.DEFAULT_HEAD_DIM)
    if config.get("per_layer_config") is None:
        if config.get("attention_k_eq_v"):
            kv_heads = hf.integer(config, "num_global_key_value_heads", default=kv_heads)
        return kv_heads, hf.integer(config, "global_head_dim", default=_FULL_HEAD_DIM)
    layers = hf.table(config, "per_layer_config")
    own = [hf.table(layers, str(i)) for i in range(len(slides))]
    found = {
        (
            slide,
            hf.integer(each, "num_key_value_heads", default=kv_heads),
            hf.integer(each, "head_dim", default=dim),
        )
        for each, slide in zip(own, slides, strict=True)
    }
    full = [shape for slide, *shape in found if not slide]
    if len(full) > 1 or any((*rest,) != (kv_heads, dim) for slide, *rest in found if slide):
        raise CheckpointError(
            "config.json: per_layer_config gives layers of one kind different heads.",
            param="per_layer_config",
        )
    return full[0][0], full[0][1]


def _ropes(config: hf.HFConfig, full_head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Return the RoPE of the layers that attend to all, and of those that slide."""
    hf.only(config, "rope_scaling", None, "the RoPE of rope_parameters")
    return ropes.ropes(
        {**config, "rope_parameters": config.get("rope_parameters") or _ROPES},
        hf.integer(config, "head_dim", default=gemma.DEFAULT_HEAD_DIM),
        hf.integer(config, "max_position_embeddings"),
        thetas=_THETAS,
        scaled=(),
        full_head_dim=full_head_dim,
    )
