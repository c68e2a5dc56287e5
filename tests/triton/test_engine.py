"""A whole engine on the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from tests.e2e.tiny_model import write_tiny_model

PROMPTS = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, 20)]


def tokens(model: Path, **fields: Any) -> list[list[int]]:
    given: dict[str, Any] = {"max_model_len": 64, "num_gpu_blocks_override": 40, "device": "cpu"}
    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    with LLM(str(model), **given, **fields) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


@pytest.mark.slow
def test_the_tokens_are_those_of_the_reference(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path)
    expected = tokens(model, ops="reference", dtype="float32")
    assert tokens(model, ops="triton", dtype="float32") == expected
    alone = {"max_num_seqs": 1, "max_num_batched_tokens": 7}
    assert tokens(model, ops="triton", dtype="float32", **alone) == expected
