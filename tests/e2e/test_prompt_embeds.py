"""Prompts as embeddings: those of a prompt's tokens give the tokens that the prompt gives."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.core.errors import InvalidRequestError
from quire.core.outputs import RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.frontend.llm import LLM
from tests.e2e.tiny_model import CONFIG, tiny_weights

HIDDEN = CONFIG["hidden_size"]
TABLE = torch.from_numpy(tiny_weights()["model.embed_tokens.weight"])
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def engine(model: Path, **fields: Any) -> LLM:
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 8, "num_threads": 1}
    return LLM(str(model), **{"enable_prompt_embeds": True, **limits, **fields})


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    with engine(tiny_model) as running:
        yield running


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Of 5 to 100 tokens: the longest take four steps."""
    random = np.random.default_rng(seed)
    return [random.integers(0, 256, int(n)).tolist() for n in random.integers(5, 100, count)]


def embedded(token_ids: list[int]) -> dict[str, Any]:
    return {"prompt_embeds": TABLE[token_ids]}


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("fields", [{}, {"enforce_eager": True}, {"num_scheduler_steps": 4}])
def test_the_tokens_are_the_prompts(tiny_model: Path, fields: dict[str, Any]) -> None:
    given = prompts(6)
    params = PARAMS.replace(repetition_penalty=1.0)
    with engine(tiny_model, enable_prefix_caching=False, **fields) as llm:
        expected = tokens(llm.generate(given, params, use_tqdm=False))
        mixed = [embedded(p) if i % 3 else p for i, p in enumerate(given)]
        assert tokens(llm.generate(mixed, params, use_tqdm=False)) == expected
        [n] = llm.generate(embedded(given[0]), params.replace(n=2), use_tqdm=False)
        assert [c.token_ids for c in n.outputs] == [expected[0]] * 2


def test_prefixes_are_cached_by_what_the_embeddings_are(tiny_model: Path) -> None:
    one, other = prompts(2, seed=1)
    one, other = (one * 20)[:64], (other * 20)[:64]
    with engine(tiny_model) as llm:
        [first] = llm.generate(embedded(one), PARAMS, use_tqdm=False)
        [again] = llm.generate(embedded(one), PARAMS, use_tqdm=False)
        [begun] = llm.generate(embedded(one[:32] + other[:32]), PARAMS, use_tqdm=False)
        [different] = llm.generate(embedded(other), PARAMS, use_tqdm=False)
        found = [o.num_cached_tokens for o in (first, again, begun, different)]
        assert found == [0, 56, 32, 0]
        expected = llm.generate([one, one[:32] + other[:32], other], PARAMS, use_tqdm=False)
        assert tokens([first, begun, different]) == tokens(expected)
        assert tokens([again]) == tokens([first])


def test_preempted_ones_go_on(tiny_model: Path) -> None:
    given = [p[:40] for p in prompts(8, seed=2)]
    params = PARAMS.replace(max_tokens=40)
    with engine(tiny_model, num_gpu_blocks_override=24) as llm:
        outputs = llm.generate([embedded(p) for p in given], params, use_tqdm=False)
        assert sum(o.metrics.num_preemptions for o in outputs)
        assert tokens(outputs) == tokens(llm.generate(given, params, use_tqdm=False))


def test_penalties_see_no_token_in_them(llm: LLM) -> None:
    [given] = prompts(1)
    params = PARAMS.replace(repetition_penalty=2.0, presence_penalty=0.5)
    [output] = llm.generate(embedded(given), params, use_tqdm=False)
    assert len(output.outputs[0].token_ids) == params.max_tokens
    assert len(output.prompt_token_ids) == len(given)


def saved(tensor: torch.Tensor) -> bytes:
    out = io.BytesIO()
    torch.save(tensor, out)
    return out.getvalue()


def test_every_form_of_a_tensor(llm: LLM) -> None:
    [given] = prompts(1)
    tensor = TABLE[given].to(torch.bfloat16)
    forms = [tensor, tensor[None], tensor.float().numpy(), saved(tensor), tensor.T.contiguous().T]
    outputs = llm.generate([{"prompt_embeds": f} for f in forms], PARAMS, use_tqdm=False)
    assert len({tuple(t) for t in tokens(outputs)}) == 1


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (torch.zeros(3, HIDDEN + 1), r"shape \[3, 65\]"),
        (torch.zeros(HIDDEN), "shape"),
        (torch.zeros(0, HIDDEN), "shape"),
        (torch.zeros(2, 3, HIDDEN), "shape"),
        (torch.zeros(3, HIDDEN, dtype=torch.int32), "floats"),
        (torch.full((3, HIDDEN), torch.nan), "not finite"),
        (torch.zeros(600, HIDDEN), "it has 600,"),
        (saved(torch.zeros(600, HIDDEN)), "too large"),
        (b"PK", "no tensor"),
        ("text", "tensor of floats"),
    ],
)
def test_what_cannot_be_served(llm: LLM, value: Any, word: str) -> None:
    with pytest.raises(InvalidRequestError, match=word):
        llm.generate({"prompt_embeds": value}, PARAMS, use_tqdm=False)


def test_embeddings_have_no_logprobs(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="log-probabilities"):
        llm.generate(embedded([1]), PARAMS.replace(prompt_logprobs=0), use_tqdm=False)


def test_they_have_to_be_asked_for(tiny_model: Path) -> None:
    with (
        engine(tiny_model, enable_prompt_embeds=False) as llm,
        pytest.raises(InvalidRequestError, match="--enable-prompt-embeds"),
    ):
        llm.generate(embedded([1]), PARAMS, use_tqdm=False)
