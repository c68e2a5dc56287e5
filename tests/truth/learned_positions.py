"""GPT-2, OPT and encoders: what each key of their config.json may be."""

from __future__ import annotations

from tests.truth.keys import (
    ABSENT,
    ENCODER,
    ENDS,
    FLAG,
    Architecture,
    Choices,
)

_GPT2_SIZES = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer",
               "num_attention_heads": "n_head", "intermediate_size": "n_inner"}  # fmt: skip
_DISTIL_SIZES = {"hidden_size": "dim", "num_hidden_layers": "n_layers",
                 "num_attention_heads": "n_heads", "intermediate_size": "hidden_dim"}  # fmt: skip
_GPT2: Choices = ENDS | {
    "n_positions": (200, 512),
    "n_ctx": (512, ABSENT),
    "layer_norm_epsilon": (1e-5, 0.05, ABSENT),
    "activation_function": ("gelu_new", "gelu", "relu", "silu", ABSENT),
    "tie_word_embeddings": FLAG,
    "scale_attn_weights": (True, True, True, ABSENT, ABSENT, ABSENT, False),
}
_POOLS = ("embed", "classify")
LEARNED_POSITIONS: dict[str, Architecture] = {
    "gpt2": Architecture(
        "GPT2",
        _GPT2,
        rope="",
        heads=False,
        sizes=_GPT2_SIZES,
    ),
    "gpt_bigcode": Architecture(
        "GPTBigCode",
        _GPT2
        | {
            "activation_function": ("gelu_pytorch_tanh", "gelu", "relu", "silu", ABSENT),
            "multi_query": FLAG,
        },
        rope="",
        heads=False,
        sizes=_GPT2_SIZES,
    ),
    "gptj": Architecture(
        "GPTJ",
        _GPT2
        | {
            "rotary_dim": (2, 4, 8, 16, 3),
            "tie_word_embeddings": (False, ABSENT, ABSENT, True),
        },
        rope="",
        heads=False,
        tasks=("generate",),
        sizes=_GPT2_SIZES,
    ),
    "gpt_neo": Architecture(
        "GPTNeo",
        {k: v for k, v in _GPT2.items() if not k.startswith(("n_", "scale"))}
        | {
            "max_position_embeddings": (200, 512),
            "window_size": (4, 9, 40, ABSENT),
            "attention_types": (
                [[["global"], 1]], [[["local"], 2]], [[["global", "local"], 1]],
                [[["local"], 1], [["global"], 2]], ABSENT,
            ),
        },
        rope="",
        heads=False,
        sizes={"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"},
    ),
    "opt": Architecture(
        "OPT",
        ENDS
        | {
            "max_position_embeddings": (200, 512),
            "activation_function": ("relu", "gelu", "gelu_new", ABSENT),
            "enable_bias": FLAG,
            "tie_word_embeddings": FLAG,
            "do_layer_norm_before": (True, True, True, ABSENT, ABSENT, ABSENT, False),
            "word_embed_proj_dim": (ABSENT, None),
        },
        rope="",
        heads=False,
        sizes={"intermediate_size": "ffn_dim"},
    ),
    "bert": Architecture("Bert", ENCODER, rope="", heads=False, tasks=_POOLS),
    "roberta": Architecture("Roberta", ENCODER, rope="", heads=False, tasks=_POOLS),
    "xlm-roberta": Architecture("XLMRoberta", ENCODER, rope="", heads=False, tasks=_POOLS),
    "distilbert": Architecture(
        "DistilBert",
        {"max_position_embeddings": (64, 96), "activation": ("gelu", "relu", ABSENT)},
        rope="",
        heads=False,
        tasks=_POOLS,
        sizes=_DISTIL_SIZES,
    ),
    "modernbert": Architecture(
        "ModernBert",
        {
            "max_position_embeddings": (64, 200),
            "hidden_activation": ("gelu", "silu", ABSENT),
            "norm_eps": (1e-5, 0.05, ABSENT),
            "norm_bias": FLAG,
            "attention_bias": FLAG,
            "mlp_bias": FLAG,
            "classifier_bias": FLAG,
            "classifier_pooling": ("cls", "mean", ABSENT),
            "classifier_activation": ("gelu", "relu", ABSENT),
            "local_attention": (4, 8, 9, 128, ABSENT),
            "global_attn_every_n_layers": (1, 2, ABSENT),
            "layer_types": ("types", ABSENT, ABSENT),
            "pad_token_id": (0,), "bos_token_id": (1,), "eos_token_id": (2,),
            "cls_token_id": (1,), "sep_token_id": (2,),
        },
        rope="nested",
        heads=False,
        tasks=_POOLS,
    ),
}  # fmt: skip
