"""Whatever the CPU serves, torch stays out of the process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.tiny_adapter import write_tiny_adapter

PROGRAM = """
import json, sys
from quire import LLM, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.lora.request import LoRARequest

model, adapter, variants = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
params = SamplingParams(max_tokens=2, temperature=0.5, seed=1, logprobs=1, prompt_logprobs=1)
for variant in variants:
    lora = LoRARequest("a", 1, adapter) if variant.get("enable_lora") else None
    with LLM(model, **variant) as llm:
        llm.generate("ab", params, use_tqdm=False, lora_request=lora)
        assert "torch" not in sys.modules, variant
with LLM() as llm:
    wanted = SamplingParams(structured_outputs=StructuredOutputsParams(regex="ab"))
    assert llm.generate("ab", wanted, use_tqdm=False)[0].outputs[0].text == "ab"
assert "torch" not in sys.modules, "a structure"
"""
VARIANTS: list[dict[str, object]] = [
    *({"dtype": dtype} for dtype in ("float32", "float16", "bfloat16")),
    *({"quantization": name} for name in ("int8", "int8_w8a16", "int4", "int4_g32", "fp8", "nf4")),
    *({"kv_cache_dtype": name} for name in ("int8", "fp8")),
    {"enforce_eager": True},
    {"enable_lora": True},
    {"swap_space": 0.01},
]


def test_no_variant_imports_torch(tiny_model: Path, tmp_path: Path) -> None:
    adapter = write_tiny_adapter(tmp_path / "adapter")
    words = [str(tiny_model), str(adapter), json.dumps(VARIANTS)]
    subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True)


def test_no_pooling_model_imports_torch(tmp_path: Path) -> None:
    from tests.golden.tiny_encoders import make_encoder

    make_encoder(tmp_path, "bert")
    program = (
        "import sys; from quire import LLM\n"
        "with LLM(sys.argv[1]) as llm: llm.embed('a')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
