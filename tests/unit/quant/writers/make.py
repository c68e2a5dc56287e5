"""Makes `layers.safetensors` with the programs that people write GPTQ and AWQ checkpoints with.

Run in an environment of its own, for they pin other packages: autoawq 0.2.9, auto-round 0.16.1,
torch on the CPU. `MODEL` is a small Llama in float32; each program quantizes it and saves it, and
one layer's tensors are kept, with the quantization_config as it was saved. What AutoAWQ's mean is
what its own code dequantizes them to, in float16.

    python make.py MODEL OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LAYER = "model.layers.0.self_attn.k_proj"
TEXT = "Once upon a time there was a little girl who liked to play in the park with her dog. "
LAYOUTS = ("auto_gptq", "auto_awq", "auto_round", "llm_compressor")


def auto_round(model: str, out: Path, layout: str) -> Path:
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    rounding = AutoRound(
        loaded, AutoTokenizer.from_pretrained(model), bits=4, group_size=32, sym=True, iters=0,
        disable_opt_rtn=True, device_map="cpu",
    )  # fmt: skip
    rounding.quantize_and_save(str(out), format=layout)
    return next(out.rglob("config.json")).parent


def auto_awq(model: str, out: Path) -> Path:
    from awq import AutoAWQForCausalLM
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoAWQForCausalLM.from_pretrained(model, device_map="cpu")
    recipe = {"zero_point": True, "q_group_size": 32, "w_bit": 4, "version": "GEMM"}
    loaded.quantize(tokenizer, quant_config=recipe, calib_data=[TEXT * 5] * 64)
    loaded.save_quantized(str(out))
    return out


def layer_of(folder: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    with safe_open(folder / "model.safetensors", "pt") as file:
        stored = file.keys()
        names = [name for name in stored if name.startswith(LAYER + ".")]
        return config, {name.removeprefix(LAYER + "."): file.get_tensor(name) for name in names}


def main(model: str, out: Path) -> None:
    from awq.utils.packing_utils import dequantize_gemm

    cases = {f"autoround {name}": layer_of(auto_round(model, out / name, name)) for name in LAYOUTS}
    config, tensors = cases["autoawq"] = layer_of(auto_awq(model, out / "autoawq"))
    packed = (tensors["qweight"], tensors["qzeros"], tensors["scales"])
    tensors["meaning"] = dequantize_gemm(*packed, 4, config["group_size"]).T
    stored = {
        f"{case}.{name}": tensor.contiguous()
        for case, (_, tensors) in cases.items()
        for name, tensor in tensors.items()
    }
    configs = {case: json.dumps(config) for case, (config, _) in cases.items()}
    save_file(stored, Path(__file__).with_name("layers.safetensors"), configs)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
