"""config.json → ModelConfig, for every architecture, spelling and mistake."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from quire.checkpoint.presets import preset_config, preset_names
from quire.core.errors import CheckpointError, UnsupportedModelError
from quire.models.registry import ARCHITECTURES, HF_CLASSES, PAIRED, architecture, model_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
OPT: dict[str, Any] = {
    "architectures": ["OPTForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "ffn_dim": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GPT2: dict[str, Any] = {
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 100,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
}


def qwen2(**fields: Any) -> dict[str, Any]:
    kind = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2}
    return LLAMA | kind | fields


def test_needs_no_torch() -> None:
    code = (
        "import sys\n"
        "from quire.checkpoint.presets import preset_config, preset_names\n"
        "from quire.models.memory import parameter_count\n"
        "from quire.models.registry import model_config\n"
        "for name in preset_names():\n"
        "    parameter_count(model_config(preset_config(name)))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_understood(name: str) -> None:
    config = preset_config(name)
    model = model_config(config)
    assert model.architecture == config["model_type"]
    assert model.vocab_size == config["vocab_size"]


def test_every_class_leads_to_an_architecture() -> None:
    assert {*HF_CLASSES.values(), *PAIRED} == set(ARCHITECTURES.names())
    for name in ARCHITECTURES.names():
        assert architecture(name).names.sources("embed.weight")


@pytest.mark.parametrize(
    "fields",
    [
        {
            "rope_theta": 5e5,
            "rope_scaling": {"type": "linear", "factor": 2.0},
            "torch_dtype": "torch.float16",
        },
        {
            "rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0},
            "dtype": "float16",
        },
    ],
    ids=["transformers 4", "transformers 5"],
)
def test_both_spellings(fields: dict[str, Any]) -> None:
    model = model_config(LLAMA | fields)
    assert (model.rope.theta, model.rope.scaling) == (5e5, "linear")
    assert model.rope.params == {"factor": 2.0}
    assert model.dtype == "float16"


def test_lengths_that_scaling_stretches() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert model_config(LLAMA | {"rope_scaling": yarn}).max_position_embeddings == 512
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    model = model_config(LLAMA | {"rope_scaling": dynamic})
    assert model.max_position_embeddings == 512
    assert model.rope.params["original_max_position_embeddings"] == 256
    llama3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    assert model_config(LLAMA | {"rope_scaling": llama3}).max_position_embeddings == 256


def test_partial_rotary() -> None:
    model = model_config(phi3(partial_rotary_factor=0.5))
    assert model.rope.rotary_dim == 8
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor is 0\.5"):
        model_config(LLAMA | {"partial_rotary_factor": 0.5})


def test_qwen2_sliding_window() -> None:
    sliding = {"use_sliding_window": True, "sliding_window": 32}
    assert model_config(qwen2()).qkv_bias
    assert model_config(qwen2(sliding_window=32)).sliding_window is None
    upper = model_config(qwen2(**sliding, max_window_layers=1))
    assert [upper.window(layer) for layer in range(3)] == [None, 32, 32]
    types = ["sliding_attention", "full_attention", "full_attention"]
    named = model_config(qwen2(**sliding, max_window_layers=1, layer_types=types))
    assert [named.window(layer) for layer in range(3)] == [32, None, None]
    everywhere = model_config(qwen2(**sliding, max_window_layers=0))
    assert [everywhere.window(layer) for layer in range(3)] == [32, 32, 32]
    assert model_config(qwen2(**sliding)).sliding_window is None  # from layer 28 on
    with pytest.raises(CheckpointError, match="layer_types"):
        model_config(qwen2(**sliding, layer_types=["full_attention"]))


def test_mistral_sliding_window() -> None:
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert model_config(mistral).sliding_window == 4096
    assert model_config(mistral | {"sliding_window": None}).sliding_window is None
    model = model_config(mistral | {"sliding_window": 64})
    assert [model.window(layer) for layer in range(3)] == [64, 64, 64]
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    ministral = model_config(mistral | {"sliding_window": 64, "layer_types": kinds})
    assert [ministral.window(layer) for layer in range(3)] == [64, None, 64]
    whole = model_config(mistral | {"layer_types": ["full_attention"] * 3})
    assert whole.sliding_window is None
    with pytest.raises(CheckpointError, match="sliding_window is null"):
        model_config(mistral | {"sliding_window": None, "layer_types": kinds})


def test_gpt2() -> None:
    model = model_config(GPT2)
    assert (model.intermediate_size, model.activation) == (256, "gelu_tanh")
    assert (model.norm, model.rope, model.gated_mlp) == ("layer_norm", None, False)
    assert model.learned_positions_offset == 0
    assert model.tie_word_embeddings
    assert model_config(GPT2 | {"n_inner": 100}).intermediate_size == 100


@pytest.mark.parametrize(
    ("config", "name", "taken"),
    [
        (GPT2 | {"hidden_size": 128}, "hidden_size", 128),
        (GPT2 | {"max_position_embeddings": 99}, "max_position_embeddings", 99),
        (GPT2 | {"num_attention_heads": 8}, "num_attention_heads", 8),
        (GPT2 | {"dtype": "bfloat16", "torch_dtype": "float16"}, "dtype", "bfloat16"),
    ],
)
def test_two_names_of_one_field_are_read_as_in_transformers(
    config: dict[str, Any], name: str, taken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert getattr(model_config(config), name) == taken
    assert name in caplog.text


def phi3(**fields: Any) -> dict[str, Any]:
    return LLAMA | {"architectures": ["Phi3ForCausalLM"]} | fields


def gemma(generation: str, **fields: Any) -> dict[str, Any]:
    kind = {"architectures": [f"Gemma{generation}ForCausalLM"], "head_dim": 16}
    return LLAMA | kind | {"num_key_value_heads": 2} | fields


@pytest.mark.parametrize("kind", ["su", "longrope"])
def test_phi3_s_rope_in_its_first_and_its_present_spelling(kind: str) -> None:
    factors = [float(i) for i in range(1, 9)]
    scaling = {"type": kind, "short_factor": [1.0] * 8, "long_factor": factors}
    found = model_config(phi3(rope_scaling=scaling, original_max_position_embeddings=64)).rope
    assert found.scaling == "longrope"
    assert found.params["long_factor"] == factors
    assert found.params["original_max_position_embeddings"] == 64
    assert found.params["attention_factor"] == pytest.approx((1 + 2 / 6) ** 0.5)  # of 4 and 64


def test_gemma_3_has_two_ropes_in_the_old_spelling_and_the_new() -> None:
    old = gemma("3", rope_theta=5e5, rope_local_base_freq=2e4, sliding_window_pattern=3)
    old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    new = gemma("3", layer_types=["sliding_attention"] * 2 + ["full_attention"])
    new["rope_parameters"] = {
        "full_attention": {"rope_theta": 5e5, "rope_type": "linear", "factor": 8.0},
        "sliding_attention": {"rope_theta": 2e4, "rope_type": "default"},
    }
    assert model_config(old) == model_config(new)
    model = model_config(old)
    assert (model.rope.theta, model.rope.scaling) == (5e5, "linear")
    assert (model.local_rope.theta, model.local_rope.scaling) == (2e4, "default")
    assert model.sliding_layers == (True, True, False)
    assert model.embedding_scale == 8.0
    assert model.attention_scale == 1 / 16


def test_model_type_stands_in_for_architectures() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "architectures"}
    assert model_config(config).architecture == "llama"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (LLAMA | {"architectures": ["LlamaForCausaLM"]}, r"family it has LlamaForCausalLM"),
        (
            LLAMA | {"architectures": ["MambaForCausalLM"]},
            r"MambaForCausalLM\..*families .*arcee, ",
        ),
        (
            {"model_type": "rwkv"},
            r"rwkv.*known: .*arcee, bamba, bert, bitnet, clip_text_model, cohere",
        ),
        (LLAMA | {"rope_scaling": {"type": "spiral"}}, r"spiral.*known: default, linear"),
        (LLAMA | {"hidden_act": "gelu"}, r"hidden_act is 'gelu'"),
        (LLAMA | {"hidden_act": "xielu"}, r"hidden_act is 'xielu'; known"),
        (LLAMA | {"torch_dtype": "float64"}, r"torch_dtype is 'float64'"),
        (gemma("", hidden_act="relu"), r"hidden_act is 'relu'"),
        (gemma("2", hidden_act="relu"), r"hidden_act is 'relu'"),
        (gemma("3", attn_logit_softcapping=50.0), r"attn_logit_softcapping is 50.0"),
        (gemma("2", use_bidirectional_attention=True), r"use_bidirectional_attention is True"),
        (OPT | {"do_layer_norm_before": False}, r"do_layer_norm_before"),
        (OPT | {"activation_function": "silu"}, r"activation_function is 'silu'.*gate"),
        (GPT2 | {"activation_function": "swish"}, r"activation_function is 'swish'.*gate"),
        (OPT | {"word_embed_proj_dim": 32}, r"word_embed_proj_dim is 32"),
        (GPT2 | {"scale_attn_by_inverse_layer_idx": True}, r"scale_attn_by_inverse_layer_idx"),
        (GPT2 | {"add_cross_attention": True}, r"add_cross_attention"),
    ],
)
def test_what_quire_lacks_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        model_config(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"neither architectures nor model_type"),
        ({k: v for k, v in LLAMA.items() if k != "hidden_size"}, r"hidden_size is missing"),
        ({k: v for k, v in GPT2.items() if k != "n_embd"}, r"n_embd is missing"),
        ({k: v for k, v in OPT.items() if k != "ffn_dim"}, r"ffn_dim is missing"),
        (LLAMA | {"hidden_size": "64"}, r"hidden_size is '64'; it must be a positive integer"),
        (LLAMA | {"num_hidden_layers": 0}, r"num_hidden_layers is 0"),
        (LLAMA | {"vocab_size": True}, r"vocab_size is True"),
        (LLAMA | {"hidden_size": 66}, r"hidden_size is 66, not a multiple"),
        (LLAMA | {"num_key_value_heads": 3}, r"not a multiple of num_key_value_heads, 3"),
        (LLAMA | {"head_dim": 15}, r"head_dim = 15"),
        (LLAMA | {"rms_norm_eps": 0}, r"rms_norm_eps is 0"),
        (LLAMA | {"rope_theta": "big"}, r"rope_theta is 'big'"),
        (LLAMA | {"rope_theta": float("inf")}, r"rope_theta is inf"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, r"factor is missing"),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8}}, r"low_freq_factor"),
        (phi3(rope_scaling={"type": "longrope"}), r"short_factor is missing"),
        (
            phi3(rope_scaling={"type": "su", "short_factor": [1.0], "long_factor": [1.0]}),
            r"short_factor is \[1.0\]; it must be a list of 8 numbers",
        ),
        (LLAMA | {"eos_token_id": "</s>"}, r"eos_token_id is '</s>'"),
        (LLAMA | {"tie_word_embeddings": "yes"}, r"tie_word_embeddings is 'yes'"),
    ],
)
def test_mistakes_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        model_config(config)
    assert not isinstance(caught.value, UnsupportedModelError)


MODERNBERT: dict[str, Any] = {
    "architectures": ["ModernBertForSequenceClassification"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}


def test_modernberts_two_spellings_are_the_same() -> None:
    old = {"global_attn_every_n_layers": 2, "global_rope_theta": 9e4, "local_rope_theta": 2e4}
    kinds = ["full_attention", "sliding_attention"]
    new = {
        "layer_types": kinds * 2,
        "rope_parameters": dict(
            zip(kinds, ({"rope_theta": 9e4}, {"rope_theta": 2e4}), strict=True)
        ),
    }
    parsed = model_config(MODERNBERT | old)
    assert parsed == model_config(MODERNBERT | new)
    assert [parsed.window(layer) for layer in range(4)] == [None, 65, None, 65]
    assert [rope and rope.theta for rope in (parsed.rope, parsed.local_rope)] == [9e4, 2e4]
    assert parsed.common_window is None
    usual = model_config(MODERNBERT)
    assert usual.sliding_layers == (False, True, True, False)
    everywhere = model_config(MODERNBERT | {"layer_types": ["sliding_attention"] * 4})
    assert everywhere.common_window is None  # a prompt's blocks are all there at once


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": 3}}, "full_attention"),
        ({"rope_scaling": "x"}, "rope_scaling"),
        ({"hidden_activation": "relu"}, "hidden_activation"),
        ({"classifier_activation": "silu"}, "classifier_activation"),
        ({"norm_bias": 3}, "norm_bias"),
        ({"local_attention": 0}, "local_attention"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers"),
    ],
)
def test_modernbert_mistakes(fields: dict[str, Any], param: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError)) as refused:
        model_config(MODERNBERT | fields)
    assert refused.value.param == param


def test_a_hybrid_whose_layers_all_attend_has_no_states() -> None:
    """Found by `make truth`: its plans waited for states that no step brings."""
    shape = {
        "model_type": "lfm2", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }  # fmt: skip
    assert model_config(shape | {"layer_types": ["conv", "full_attention"]}).recurrent is not None
    assert model_config(shape | {"layer_types": ["full_attention"] * 2}).recurrent is None
