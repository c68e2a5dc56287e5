"""Whatever the CPU serves, torch stays out of every process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil

from quire.system.hardware import detect
from tests.e2e.serving import Server
from tests.e2e.tiny_adapter import write_tiny_adapter
from tests.fuzz.engines import write_model
from tests.golden.gguf_model import write_gguf_model

PROGRAM = """
import contextlib, json, os, sys
from pathlib import Path
from quire import LLM, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.lora.request import LoRARequest

def check(what):
    assert "torch" not in sys.modules, what
    children = []
    for task in Path("/proc/self/task").glob("*/children"):  # a rank is a child of its thread
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            children += task.read_text().split()
    for pid in (os.getpid(), *children):  # the ranks, too
        assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text(), what
    return len(children)

adapter, variants = sys.argv[1], json.loads(sys.argv[2])
params = SamplingParams(max_tokens=4, temperature=0.5, seed=1, logprobs=1, prompt_logprobs=1)
for variant in variants:
    lora = LoRARequest("a", 1, adapter) if variant.get("enable_lora") else None
    prompt = "abababab" if lora or "load_format" not in variant else {"prompt_token_ids": [5] * 8}
    with LLM(**variant) as llm:
        llm.generate(prompt, params, use_tqdm=False, lora_request=lora)
        assert check(variant) >= variant.get("tensor_parallel_size", 1) - 1
with LLM() as llm:
    wanted = SamplingParams(structured_outputs=StructuredOutputsParams(regex="ab"))
    assert llm.generate("ab", wanted, use_tqdm=False)[0].outputs[0].text == "ab"
    check("a structure")
"""
NUMBERS: list[dict[str, Any]] = [
    {"dtype": "float32", "enforce_eager": True},
    {"dtype": "float16", "kv_cache_dtype": "fp8"},
    {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
    {"quantization": "int8", "speculative_config": {"method": "ngram"}},
    {"quantization": "int8_w8a16", "speculative_config": {"method": "suffix"}},
    {"quantization": "int4", "enable_lora": True},
    {"quantization": "int4_g32", "swap_space": 0.01},
    {"quantization": "fp8"},
    {"quantization": "nf4"},
]
DRAFT_MODEL = {
    "model": "embedded",
    "speculative_config": {"model": "embedded-draft", "num_speculative_tokens": 2},
}
DUMMIES = ("mixtral", "gpt-oss", "deepseek-v3")
"""Experts and latent attention, without files of weights."""


def test_no_variant_imports_torch(tiny_model: Path, tmp_path: Path) -> None:
    adapter = write_tiny_adapter(tmp_path / "adapter")
    gguf = write_gguf_model(tiny_model, tmp_path / "tiny.gguf", "Q4_0", tokenizer=True)
    shape = {"load_format": "dummy", "num_gpu_blocks_override": 64}
    variants = [
        *({"model": str(tiny_model), **numbers} for numbers in NUMBERS),
        {"model": str(gguf)},
        DRAFT_MODEL,
        *({"model": write_model(tmp_path / name, name), **shape} for name in DUMMIES),
    ]
    if detect().cores > 1:
        variants.append({"model": str(tiny_model), "tensor_parallel_size": 2})
    words = [str(adapter), json.dumps(variants)]
    subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True)


def test_no_process_of_a_server_imports_torch(server: Server) -> None:
    assert server.text(structured_outputs={"regex": "ab"}) == "ab"
    program = psutil.Process(server.process.pid)
    found = {each.pid: " ".join(each.cmdline()) for each in (program, *program.children())}
    for module in ("engine.process", "tokenizer_worker", "grammar_worker"):
        assert any(module in command for command in found.values()), found
    maps = {command: Path(f"/proc/{pid}/maps").read_text() for pid, command in found.items()}
    assert not [command for command, libraries in maps.items() if "libtorch" in libraries]


def test_no_pooling_model_imports_torch(tmp_path: Path) -> None:
    from tests.golden.tiny_encoders import make_encoder

    make_encoder(tmp_path, "bert")
    program = (
        "import sys; from quire import LLM\n"
        "with LLM(sys.argv[1]) as llm: llm.embed('a')\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
