"""Two ranks, and two pipeline stages, give one process's answers, whatever is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quire import LLM, LoRARequest, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.system.hardware import detect
from tests.e2e.tiny_adapter import write_tiny_adapter
from tests.e2e.tiny_model import write_tiny_model

pytestmark = pytest.mark.skipif(detect().cores < 2, reason="every rank needs a core of its own")

PROMPTS = ["Once upon a time", "A cat", "The dog said", "One morning"]
DRAFTS = {"method": "suffix", "num_speculative_tokens_per_batch_size": [[1, 64, 4]]}
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, prompt_logprobs=1, logprobs=2),
    SamplingParams(temperature=0.9, seed=3, max_tokens=40, repetition_penalty=1.2),
    SamplingParams(
        temperature=0.8,
        seed=5,
        max_tokens=40,
        structured_outputs=StructuredOutputsParams(regex=r"[A-Z][a-z ]{20,30}\."),
    ),
    SamplingParams(temperature=0.8, seed=6, n=2, max_tokens=60, ignore_eos=True),
]


def answers(ranks: int, **fields: Any) -> list[list[list[int]]]:
    """Tokens of all answers, of the same requests twice: the second time prefixes are cached."""
    with LLM(dtype="float32", max_model_len=256, tensor_parallel_size=ranks, **fields) as llm:
        outputs = [*llm.generate(PROMPTS, PARAMS), *llm.generate(PROMPTS, PARAMS)]
        llm._core.scheduler.check_integrity()
        return [[list(o.token_ids) for o in output.outputs] for output in outputs]


def adapted(ranks: int, folder: Path, **more: Any) -> list[list[int]]:
    """Tokens with two adapters and without, in one batch."""
    flags = {"enable_lora": True, "max_loras": 2, "num_gpu_blocks_override": 256, **more}
    with LLM(str(folder / "model"), tensor_parallel_size=ranks, **flags) as llm:
        adapters = [LoRARequest(f"a{i}", i, str(folder / f"a{i}")) for i in (1, 2)]
        greedy = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
        outputs = llm.generate(PROMPTS, greedy, lora_request=[*adapters, None, adapters[0]])
        return [list(output.outputs[0].token_ids) for output in outputs]


def test_adapters(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model")
    for i in (1, 2):
        write_tiny_adapter(tmp_path / f"a{i}", i)
    one, two = (adapted(ranks, tmp_path) for ranks in (1, 2))
    assert one == two
    assert len({*map(tuple, one)}) == 4


@pytest.mark.parametrize(
    ("kind", "labels"), [("modernbert", 0), pytest.param("bert", 1, marks=pytest.mark.slow)]
)
def test_texts_are_pooled(kind: str, labels: int, tmp_path: Path) -> None:
    """An encoder's embeddings, and a cross-encoder's scores."""
    from tests.golden.tiny_encoders import TEXTS, make_encoder  # imports torch

    make_encoder(tmp_path, kind, labels=labels, hidden_size=64, num_attention_heads=4)

    def vectors(ranks: int) -> np.ndarray:
        with LLM(str(tmp_path), tensor_parallel_size=ranks) as llm:
            if labels:
                return np.array([out.outputs.score for out in llm.score(TEXTS[0], TEXTS)])
            return np.array([out.outputs.embedding for out in llm.embed(TEXTS)])

    np.testing.assert_allclose(vectors(2), vectors(1), atol=1e-5)


def test_two_ranks_give_one_ranks_answers(tmp_path: Path) -> None:
    """With steps that overlap, and so few blocks that requests are swapped out, and prefixes are
    kept in memory and files."""
    tiers = {
        "num_gpu_blocks_override": 18,
        "preemption_mode": "swap",
        "swap_space": 0.01,
        "kv_offloading_size": 0.001,
        "kv_offloading_dir": str(tmp_path),
        "async_scheduling": True,
    }
    assert answers(2, **tiers) == answers(1, num_gpu_blocks_override=256)
    assert list(tmp_path.iterdir()), "no block was written"


def staged(stages: int, **fields: Any) -> list[tuple[list[list[int]], str]]:
    """Tokens and log-probabilities of all answers, of the same requests twice."""
    with LLM(dtype="float32", max_model_len=256, pipeline_parallel_size=stages, **fields) as llm:
        outputs = [*llm.generate(PROMPTS, PARAMS), *llm.generate(PROMPTS, PARAMS)]
        scheduler = llm._core.scheduler
        scheduler.check_integrity()
        drafted = scheduler.stats().spec_decoding
        assert drafted is None or drafted.num_draft_tokens > drafted.num_accepted_tokens > 0
        return [
            ([list(o.token_ids) for o in out.outputs], f"{out.prompt_logprobs} {out.outputs[0]}")
            for out in outputs
        ]


@pytest.mark.slow
def test_two_stages_give_one_process_bits(tmp_path: Path) -> None:
    """With chunks, a waiting step, swaps, tiers; log-probabilities have the same bits, too."""
    tiers = {
        "num_gpu_blocks_override": 18,
        "preemption_mode": "swap",
        "swap_space": 0.01,
        "kv_offloading_size": 0.001,
        "kv_offloading_dir": str(tmp_path),
    }
    alone = staged(1, num_gpu_blocks_override=256)
    for fields in (
        tiers,
        {"async_scheduling": True},
        {"max_num_batched_tokens": 256},
        {"speculative_config": DRAFTS},
    ):
        assert staged(2, **fields) == alone


@pytest.mark.slow
def test_recurrent_layers(tmp_path: Path) -> None:
    """Ranks and stages have their parts of the states."""
    config = {"model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "vocab_size": 256}
    config |= {"hidden_size": 64, "intermediate_size": 128, "block_auto_adjust_ff_dim": False}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
    config |= {"layer_types": ["conv", "full_attention"] * 2, "max_position_embeddings": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    flags = {"model": str(tmp_path), "load_format": "dummy"}
    alone = staged(1, **flags)
    assert staged(2, **flags) == alone
    assert staged(2, **flags, async_scheduling=True, max_num_batched_tokens=256) == alone
    assert staged(2, **flags, async_scheduling=True, speculative_config=DRAFTS) == alone
    assert answers(2, **flags) == [tokens for tokens, _ in alone]


@pytest.mark.slow
def test_adapters_of_stages(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model")
    for i in (1, 2):
        write_tiny_adapter(tmp_path / f"a{i}", i)
    assert adapted(1, tmp_path, pipeline_parallel_size=2) == adapted(1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "labels"), [("modernbert", 0), ("bert", 1)])
def test_stages_pool_texts(kind: str, labels: int, tmp_path: Path) -> None:
    from tests.golden.tiny_encoders import TEXTS, make_encoder  # imports torch

    make_encoder(tmp_path, kind, labels=labels, hidden_size=64, num_attention_heads=4)

    def vectors(stages: int) -> list[Any]:
        with LLM(str(tmp_path), pipeline_parallel_size=stages) as llm:
            if labels:
                return [out.outputs.score for out in llm.score(TEXTS[0], TEXTS)]
            return [out.outputs.embedding for out in llm.embed(TEXTS)]

    assert vectors(2) == vectors(1)


@pytest.mark.slow
def test_ranks_with_torch(tmp_path: Path) -> None:
    """Sums are rounded otherwise than in one process, but alike on both ranks and in any batch."""
    pytest.importorskip("torch")
    model = str(write_tiny_model(tmp_path))
    given: dict[str, Any] = {"ops": "reference", "max_model_len": 64, "block_size": 8}
    greedy = SamplingParams(temperature=0, max_tokens=12, logprobs=1)

    def found(llm: LLM, prompts: list[str]) -> list[Any]:
        outputs = [output.outputs[0] for output in llm.generate(prompts, greedy)]
        return [(output.token_ids, output.cumulative_logprob) for output in outputs]

    with LLM(model, dtype="float32", **given) as llm:
        one = found(llm, PROMPTS)
    with LLM(model, dtype="float32", tensor_parallel_size=2, **given) as llm:
        two = found(llm, PROMPTS)
        assert found(llm, PROMPTS[:1]) + found(llm, PROMPTS[1:]) == two
    assert [tokens for tokens, _ in two] == [tokens for tokens, _ in one]
    np.testing.assert_allclose([score for _, score in two], [score for _, score in one], rtol=1e-5)
