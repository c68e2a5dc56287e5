"""Fields of quantization_config: what is refused, by name."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core.errors import CheckpointError, QuireError, UnsupportedModelError
from quire.quant.awq import Awq
from quire.quant.fields import skipped
from quire.quant.gptq import Gptq
from quire.quant.registry import method, quantization_config

GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}
AUTO = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True}
QUARK: dict[str, Any] = {
    "quant_method": "quark", "version": "0.10", "quant_mode": "eager_mode", "exclude": ["lm_head"],
    "algo_config": [{"name": "rotation", "r1": True, "r2": True, "r3": False, "r4": False}],
    "layer_type_quant_config": {}, "kv_cache_quant_config": {}, "softmax_quant_spec": None,
    "export": {"kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized"},
}  # fmt: skip
E4M3 = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True}
MXFP4 = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "scale_format": "e8m0"}


def quark(weight: dict[str, Any], **others: Any) -> dict[str, Any]:
    layer = {"weight": weight, "input_tensors": weight, "output_tensors": None, "bias": None}
    return QUARK | {"global_quant_config": layer} | others


WEIGHTS: dict[str, Any] = {
    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128,
}  # fmt: skip


def recipe(
    form: str = "pack-quantized", group: dict[str, Any] | None = None, **weights: Any
) -> Any:
    groups = {"group_0": {"targets": ["Linear"], "weights": WEIGHTS | weights} | (group or {})}
    return {
        "quant_method": "compressed-tensors", "format": form, "config_groups": groups,
        "ignore": ["lm_head"],
    }  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str]] = [
    (GPTQ | {"bits": 5}, "bits is 5; Quire reads 2, 3, 4, 8"),
    (GPTQ | {"bits": "4"}, "bits is '4'"),
    (GPTQ | {"bits": [4]}, "bits is"),
    (GPTQ | {"group_size": 0}, "group_size is 0; it must be -1 or a multiple of 8"),
    (GPTQ | {"group_size": 1.5}, "group_size is 1.5; it must be a whole number"),
    (GPTQ | {"sym": "yes"}, "sym is 'yes'; it must be true or false"),
    (GPTQ | {"checkpoint_format": "marlin"}, "marlin"),
    (GPTQ | {"checkpoint_format": "new"}, "checkpoint_format is 'new'; Quire reads gptq"),
    (GPTQ | {"dynamic": {"(": {}}}, r"dynamic has the pattern '\('"),
    (GPTQ | {"dynamic": {".*": {"bits": 4, "what": 1}}}, r"dynamic\.\.\*\.what is 1"),
    (GPTQ | {"dynamic": 3}, "dynamic is 3; it must be a table"),
    (GPTQ | {"modules_to_not_convert": "x"}, "modules_to_not_convert is 'x'; it must be a list"),
    (GPTQ | {"rounding_mode": 1}, "rounding_mode is 1; Quire does not know the field"),
    ({"quant_method": "gptq"}, "bits is missing"),
    (AWQ | {"version": "gemv"}, "version is 'gemv'; Quire reads gemm"),
    (AWQ | {"zero_point": 1}, "zero_point is 1; it must be true or false"),
    (AWQ | {"bits": 8}, "bits is 8"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is"),
    ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size is"),
    ({"quant_method": "fp8", "activation_scheme": "none"}, "activation_scheme is 'none'"),
    (BNB | {"load_in_8bit": True}, "load_in_4bit is True"),
    (BNB | {"bnb_4bit_quant_type": "nf3"}, "bnb_4bit_quant_type is 'nf3'"),
    (recipe(num_bits=9), r"config_groups\.group_0\.weights\.num_bits is 9"),
    (recipe("int-quantized", num_bits=1), r"weights\.num_bits is 1; integers have 2 to 8 bits"),
    (recipe(strategy="row"), r"weights\.strategy is 'row'"),
    (recipe(type="complex"), r"weights\.type is 'complex'"),
    (recipe(new_field=1), r"weights\.new_field is 1"),
    (recipe(group={"targets": ["re:("]}), r"pattern 're:\('"),
    (recipe(group={"output_activations": {"num_bits": 8}}), "output_activations"),
    (recipe("sparse"), "format is 'sparse'"),
    (recipe() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
    (recipe() | {"sparsity_config": [1]}, r"sparsity_config is \[1\]; it must be a table"),
    (recipe() | {"transform_config": "x"}, "transform_config is 'x'; it must be a table"),
    ({"quant_method": "compressed-tensors", "format": "dense"}, "config_groups is missing"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo is 'W4A8'"),
    (quark(E4M3 | {"dtype": "int4"}), r"global_quant_config\.weight\.dtype is 'int4'"),
    (quark(E4M3 | {"qscheme": "per_group"}), "qscheme is 'per_group'"),
    (quark(MXFP4 | {"group_size": 16}), "group_size is 16"),
    (quark(E4M3, algo_config=[{"name": "rotation", "r4": True}]), "algo_config is"),
    (quark(E4M3, layer_type_quant_config={"Linear": {}}), "layer_type_quant_config is"),
    (quark(E4M3, global_quant_config={"weight": [E4M3, E4M3]}), "weight is"),
    (quark(E4M3, export={"weight_format": "fake_quantized"}), "weight_format is"),
    (quark(E4M3, new=1), "new is 1"),
    (AUTO | {"packing_format": "auto_round:fp8"}, "packing_format is 'auto_round:fp8'"),
    (AUTO | {"data_type": "mx_fp"}, "data_type is 'mx_fp'"),
    (AUTO | {"act_bits": 8}, "act_bits is 8"),
    (AUTO | {"extra_config": [1]}, "extra_config is "),
    (AUTO | {"extra_config": {"a": {"bits": [16]}}}, r"extra_config\.a\.bits is \[16\]"),
    (AUTO | {"extra_config": {"a": {"bits": 4, "sparse": 1}}}, r"dynamic\.a\.sparse is 1"),
    (AUTO | {"packing_format": "auto_round:auto_awq", "extra_config": {"a": {"bits": 8}}},
     r"extra_config\.a\.bits is 8"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=message) as caught:
        method(config)
    assert caught.value.param.startswith("quantization_config.")


def test_auto_round_is_gptq_or_awq_by_another_name() -> None:
    dense = {"model.layers.0.mlp.down_proj": {"bits": 16, "act_bits": 16}}
    for packing, less in (("auto_round:auto_gptq", 1), ("auto_round", 0)):
        wide = {"model.layers.1.mlp.down_proj": {"bits": 8, "data_type": "int"}}
        found = method(AUTO | {"packing_format": packing, "extra_config": dense | wide})
        assert found.name == "auto-round"
        assert found.scheme("model.layers.0.mlp.down_proj") is None
        assert found.scheme("model.layers.1.mlp.down_proj") == Gptq(8, 32, zero_less=less)
        assert found.scheme("model.layers.2.mlp.down_proj") == Gptq(4, 32, zero_less=less)
    found = method(AUTO | {"packing_format": "auto_round:auto_awq", "extra_config": dense})
    assert found.scheme("model.layers.0.mlp.down_proj") is None
    assert found.scheme("model.layers.1.mlp.down_proj") == Awq(32)


def test_methods_that_nobody_reads() -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"by 'quip'.*Quire reads auto-round, awq.*gptq.*GGUF"
    ):
        method({"quant_method": "quip"})


def test_configurations_that_do_not_name_their_method() -> None:
    assert quantization_config({}) is None
    assert quantization_config({"quantization_config": None}) is None
    found = quantization_config({"quantization_config": {"load_in_8bit": True}})
    assert found["quant_method"] == "bitsandbytes"
    found = quantization_config({"compression_config": {"config_groups": {}}})
    assert found["quant_method"] == "compressed-tensors"
    inner = {"quantization_config": {"quant_method": "awq"}}
    assert quantization_config({"text_config": inner}) == {"quant_method": "awq"}
    for broken in ({"bits": 4}, [1], "gptq"):
        with pytest.raises(QuireError, match="quantization_config"):
            quantization_config({"quantization_config": broken})


def test_targets_and_exceptions() -> None:
    config = recipe()
    config["config_groups"]["group_1"] = {
        "targets": [r"re:.*\.down_proj$", "model.layers.3.self_attn.q_proj"],
        "weights": WEIGHTS | {"num_bits": 8},
    }
    config["ignore"] += [r"re:model\.layers\.0\..*", "model.layers.1.mlp.up_proj"]
    scheme = method(config).scheme

    def bits(layer: str) -> int | None:
        found = scheme(layer)
        return None if found is None else found.form(256).bits

    assert bits("lm_head") is None
    assert bits("model.layers.0.mlp.down_proj") is None
    assert bits("model.layers.1.mlp.up_proj") is None
    assert bits("model.layers.1.mlp.gate_proj") == 4
    assert bits("model.layers.1.mlp.down_proj") == 8
    assert bits("model.layers.3.self_attn.q_proj") == 8


def test_lists_of_modules() -> None:
    assert skipped("model.layers.0.mlp.down_proj", ("down_proj",))
    assert skipped("model.layers.0.mlp.down_proj", ("model.layers.0.",))
    assert not skipped("model.layers.10.mlp.down_proj", ("layers.1",))
