"""On a real GPU; skipped where torch has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.ops.torch_ops.cuda import CudaDevice
from quire.ops.torch_ops.weight_stream import WeightStream
from tests.e2e.tiny_model import write_tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")

PROMPTS = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, 70, 17)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=16, logprobs=1, prompt_logprobs=0),
    SamplingParams(temperature=0.8, top_k=20, seed=5, max_tokens=16),
    SamplingParams(temperature=0.0, repetition_penalty=1.3, max_tokens=16),
]


def tokens(model: str | Path, params: Any = PARAMS, **fields: Any) -> list[Any]:
    given: dict[str, Any] = {
        "max_model_len": 128, "num_gpu_blocks_override": 40, "dtype": "float32", **fields,
    }  # fmt: skip
    with LLM(str(model), **given) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]


def test_the_gpu_answers_as_the_cpu(tmp_path: Path) -> None:
    """Weights that tell tokens well apart: roundings differ."""
    model = write_tiny_model(tmp_path)
    greedy = [PARAMS[0], PARAMS[0], PARAMS[2]]
    expected = tokens(model, greedy, device="cpu", ops="reference")
    assert tokens(model, greedy, device="cuda") == expected


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_weights_give_the_same(dtype: str) -> None:
    plain = tokens("embedded", device="cuda", dtype=dtype)
    assert tokens("embedded", device="cuda", dtype=dtype, cpu_offload_gb=0.008) == plain


def test_a_batch_changes_nothing(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path)
    together = tokens(model, device="cuda")
    alone = tokens(model, device="cuda", max_num_seqs=1, max_num_batched_tokens=7)
    assert together == alone


def test_a_stream_beside_work() -> None:
    """Copies and products that take some time, in both directions of dependence."""
    device = CudaDevice()
    size, layers = 2**22, 5
    slab = device.pinned(size * layers)
    for layer in range(layers):
        slab[layer * size : (layer + 1) * size] = layer + 1
    stream = WeightStream(device, slab, [(i * size, (i + 1) * size) for i in range(layers)], 2)
    busy = torch.randn(2048, 2048, device=device.torch)
    sums = []
    for step in range(4 * layers):
        buffer = stream.use(step % layers)
        busy = (busy @ busy).clamp(-1, 1)
        sums.append(buffer.long().sum())
    found = [int(total) for total in sums]
    assert found == [size * (step % layers + 1) for step in range(4 * layers)]


def test_pinned_memory_is_pinned() -> None:
    device = CudaDevice()
    memory = device.pinned(10_000_001)
    assert memory.is_pinned()
    used, total = device.memory()
    assert 0 < used < total
