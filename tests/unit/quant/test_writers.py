"""A layer as AutoRound writes it in four layouts, and as AutoAWQ does; `writers/make.py` made the
file, which has each quantization_config as its writer saved it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors import safe_open

from quire.quant.registry import method

FILE = Path(__file__).parent / "writers" / "layers.safetensors"
LAYER = "model.layers.0.self_attn.k_proj"
LAYOUTS = ("auto_gptq", "auto_awq", "auto_round", "llm_compressor")
SHAPE = (64, 128)


def read(case: str) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
    """What Quire reads in it, float32; and its tensors."""
    with safe_open(FILE, "np") as file:
        stored = file.keys()
        names = [name for name in stored if name.startswith(case + ".")]
        tensors = {name.removeprefix(case + "."): file.get_tensor(name) for name in names}
        scheme = method(json.loads(file.metadata()[case])).scheme(LAYER)
    specs = scheme.stored(*SHAPE)
    sides = {}
    for name in tensors.keys() & specs.keys():
        values = tensors[name]
        assert not specs[name].shapes or values.shape in specs[name].shapes
        sides[name] = values.astype(np.float32) if values.dtype == np.float16 else values
    assert tensors.keys() - sides.keys() <= {"meaning"}
    return scheme.read(sides, *SHAPE).dequantize(), tensors


@pytest.mark.parametrize("layout", LAYOUTS[:-1])
def test_auto_round_means_the_same_in_every_layout(layout: str) -> None:
    """Weights that were rounded alike, in the layouts of GPTQ, of AWQ without zero points, and its
    own; that of compressed-tensors is held to its library in test_compressed_tensors."""
    weight, _ = read(f"autoround {layout}")
    other, _ = read(f"autoround {LAYOUTS[-1]}")
    assert np.array_equal(weight, other)
    assert float(np.abs(weight).max()) > 0


def test_auto_awq_means_what_its_own_code_says() -> None:
    """A float16 times a small integer is exact in float32, and rounds to float16 once."""
    weight, tensors = read("autoawq")
    assert np.array_equal(weight.astype(np.float16), tensors["meaning"])
