"""Every golden architecture on a real GPU; skipped where torch has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from quire import LLM, SamplingParams
from tests.golden.tiny_models import (
    FEW_KINDS,
    RECURRENT_MODELS,
    TINY_MODELS,
    make_tiny,
    save_byte_tokenizer,
)  # fmt: skip
from tests.golden.transformers_oracle import NUM_TOKENS, find_golden

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch has no GPU")

LOGPROB_TOLERANCE = 2e-4
"""Twice that of logits (tests/golden/test_architectures.py): a log-probability has two of them."""

Made = Callable[[str], tuple[Path, PreTrainedModel]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    def make(name: str) -> tuple[Path, PreTrainedModel]:
        folder = tmp_path_factory.mktemp(name)
        try:
            model = make_tiny(name, seed=0, folder=folder)
        except ValueError as error:  # an older Transformers
            pytest.skip(str(error)[:80])
        save_byte_tokenizer(folder)
        return folder, model

    return make


def answers(model: Path, prompts: list[list[int]], params: SamplingParams, **fields: Any) -> Any:
    """Return the tokens and the log-probabilities of the prompt's and the answer's."""
    given: dict[str, Any] = {
        "device": "cuda", "max_model_len": 128, "num_gpu_blocks_override": 40, **fields,
    }  # fmt: skip
    with LLM(str(model), **given) as llm:
        asked: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(asked, params, use_tqdm=False)
    found = []
    for prompt, output in zip(prompts, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        numbers = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
        chosen = [n[t].logprob for n, t in zip(numbers, [*prompt, *tokens][1:], strict=True)]
        found.append((tokens, chosen))
    return found


@pytest.mark.parametrize("name", [*TINY_MODELS, *RECURRENT_MODELS])
def test_answers_as_the_cpu_does(name: str, made: Made) -> None:
    """In graphs, and beside another sequence whose prompt comes in chunks.

    The CPU's answers are Transformers' (tests/golden): not all versions of it know all models.
    """
    folder, model = made(name)
    prompts = [list(range(2, 60)), list(range(100, 145))]
    if name in TINY_MODELS:
        prompts[0] = find_golden(model).prompt  # keeps the best two tokens apart
    params = SamplingParams(
        temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    fields = {"dtype": "float32", "max_num_batched_tokens": 32, "max_num_seqs": 8}
    expected = answers(folder, prompts, params, **fields, device="cpu")
    found = answers(folder, prompts, params, **fields)
    assert found[0][0] == expected[0][0]
    away = [abs(a - b) for a, b in zip(found[0][1], expected[0][1], strict=True)]
    assert max(away) <= LOGPROB_TOLERANCE


@pytest.mark.parametrize(
    ("name", "kv_cache_dtype"),
    [
        *((name, "auto") for name in ("llama", *sorted(FEW_KINDS))),
        *(("llama", kind) for kind in ("fp8", "int8", "int4")),
    ],
)
def test_a_batch_changes_no_bit(name: str, kv_cache_dtype: str, made: Made) -> None:
    """Bfloat16: graphs or not, chunks or not, alone or not."""
    folder, _ = made(name)
    params = SamplingParams(
        temperature=0.8, seed=3, max_tokens=12, ignore_eos=True, logprobs=0, prompt_logprobs=0
    )
    prompts = [list(range(2, 2 + n)) for n in (5, 70, 17, 33, 1, 64)]
    fields = {"dtype": "bfloat16", "kv_cache_dtype": kv_cache_dtype}
    together = answers(folder, prompts, params, **fields)
    fields |= {"max_num_seqs": 1, "max_num_batched_tokens": 7, "enforce_eager": True}
    assert answers(folder, prompts, params, **fields) == together
