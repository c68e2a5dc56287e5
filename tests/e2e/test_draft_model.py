"""A draft model: the embedded one's draft changes no answer, and is mostly right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 -- numpy's bfloat16
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import quire
from quire import LLM, SamplingParams
from quire.core.errors import ConfigError
from quire.core.messages import SpecDecodingStats
from quire.core.structured_outputs import StructuredOutputsParams
from quire.profile.layerwise import layerwise_profile
from quire.spec.draft_passes import DraftPasses
from quire.system.hardware import detect

ASSETS = Path(quire.__file__).parent / "assets"
PROMPTS = ["Once upon a time", "The cat and the dog", "One day, a girl named Lily found", "Tom"]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=60, logprobs=1),
    SamplingParams(temperature=0.7, seed=1, max_tokens=60, logprobs=0, n=2),
    SamplingParams(temperature=1.0, seed=2, max_tokens=60, repetition_penalty=1.1, top_p=0.9),
    SamplingParams(
        temperature=0.8,
        seed=3,
        max_tokens=30,
        structured_outputs=StructuredOutputsParams(regex="( [a-z]{1,9}){12}"),
    ),
]
DRAFT: dict[str, Any] = {
    "model": "embedded-draft",
    "num_speculative_tokens": 4,
    "num_speculative_tokens_per_batch_size": [[1, 64, 4]],
}


def answers(**flags: Any) -> tuple[list[Any], SpecDecodingStats | None, int]:
    with LLM("embedded", **flags) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        stats = llm.stats.scheduler
    if drafted := stats.spec_decoding:
        told = [each.metrics.num_draft_tokens for each in outputs]
        right = [each.metrics.num_accepted_tokens for each in outputs]
        assert sum(told) == drafted.num_draft_tokens
        assert sum(right) == drafted.num_accepted_tokens
    found = [(each.token_ids, each.logprobs) for output in outputs for each in output.outputs]
    return found, stats.spec_decoding, stats.num_preemptions


@pytest.fixture(scope="module")
def plain() -> list[Any]:
    return answers()[0]


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"async_scheduling": True, "max_num_batched_tokens": 7, "max_num_seqs": 4},
        pytest.param(
            {"pipeline_parallel_size": 2, "async_scheduling": True, "num_threads": 2},
            marks=pytest.mark.skipif(detect().cores < 2, reason="every stage needs a core"),
        ),
    ],
    ids=["alone", "small-steps", "stages"],
)
def test_a_draft_model_changes_no_answer(plain: list[Any], flags: dict[str, Any]) -> None:
    found, drafted, _ = answers(speculative_config=DRAFT, **flags)
    assert found == plain
    assert drafted.num_accepted_tokens > max(40, 0.3 * drafted.num_draft_tokens)


def test_native_passes_draft_what_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """So their keys, parameters and inputs are those that `sample_drafts` has."""
    drawn = [
        {"temperature": 0.0},
        {"temperature": 0.7, "seed": -5},
        {"temperature": 1.0, "seed": 2**63 - 1, "top_p": 0.9},
        {"temperature": 1.2, "seed": 4, "top_k": 20, "min_p": 0.02},
    ]
    params = [SamplingParams(max_tokens=40 + i, **each) for i, each in enumerate(drawn)]
    found = []
    with LLM(
        "embedded", speculative_config=DRAFT, max_num_batched_tokens=64, max_num_seqs=4
    ) as llm:
        for _ in range(2):
            with layerwise_profile(llm) as profile:
                outputs = llm.generate(PROMPTS, params, use_tqdm=False)
            drafts, model = (profile.results.model.children[name] for name in ("draft", "model"))
            assert drafts.children.keys() == model.children.keys()
            assert 0 < drafts.children["layers"].nbytes < model.children["layers"].nbytes
            assert profile.results.profile.num_accepted_tokens > 40
            told = [(e.metrics.num_draft_tokens, e.metrics.num_accepted_tokens) for e in outputs]
            found.append((told, [e.outputs[0].token_ids for e in outputs]))
            monkeypatch.setattr(DraftPasses, "can_draw", lambda *_: False)
    assert found[0] == found[1]
    assert sum(right for _, right in found[0][0]) > 40


def test_nor_where_sequences_are_preempted(plain: list[Any]) -> None:
    found, _, preempted = answers(
        speculative_config=DRAFT, num_gpu_blocks_override=16, block_size=8, max_model_len=128
    )
    assert found == plain
    assert preempted


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    """So its keys and values are those of the target, after rejected drafts too."""
    greedy = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    with LLM("embedded", speculative_config={**DRAFT, "model": "embedded"}) as llm:
        llm.generate(PROMPTS, greedy, use_tqdm=False)
        llm.generate(PROMPTS[0], PARAMS[2], use_tqdm=False)
        stats = llm.stats.scheduler
    assert stats.spec_decoding.num_accepted_tokens == stats.spec_decoding.num_draft_tokens > 100


def test_another_order_of_the_vocabulary_changes_no_draft(plain: list[Any], tmp_path: Path) -> None:
    """The same draft model with other token ids: its drafts are matched by their texts."""
    found, drafted, _ = answers(speculative_config=DRAFT)
    write_shuffled(tmp_path)
    others, shuffled, _ = answers(speculative_config={**DRAFT, "model": str(tmp_path)})
    assert others == found == plain
    counts = SpecDecodingStats.__struct_fields__[:4]  # without the time
    assert [getattr(shuffled, n) for n in counts] == [getattr(drafted, n) for n in counts]


def write_shuffled(folder: Path) -> None:
    """Write the embedded draft with its control tokens first and all others in random order."""
    source = ASSETS / "story-draft"
    vocab = json.loads((source / "tokenizer.json").read_text())["model"]["vocab"]
    order = np.arange(len(vocab))
    order[7:] = np.random.default_rng(0).permutation(order[7:])  # new id → old id
    new_ids = np.argsort(order)
    for path in source.glob("*.json"):
        text = json.loads(path.read_text())
        if path.name == "tokenizer.json":
            text["model"]["vocab"] = {name: int(new_ids[old]) for name, old in vocab.items()}
        (folder / path.name).write_text(json.dumps(text))
    tensors = load_file(source / "model.safetensors")
    name = "model.embed_tokens.weight"
    tensors[name] = np.ascontiguousarray(tensors[name][order])
    save_file(tensors, folder / "model.safetensors")


def test_another_vocabulary_without_texts_is_refused() -> None:
    with pytest.raises(ConfigError, match="no tokenizer to match their texts by"):
        LLM("opt-125m", load_format="dummy", speculative_config={"model": "embedded-draft"})
