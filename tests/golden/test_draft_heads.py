"""Draft heads against a plain torch loop: the same drafts and logits, whatever happens to the
sequences in the engine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from quire import LLM, SamplingParams
from quire.core.batch import Column
from quire.core.errors import ConfigError
from quire.runner.state import SequenceStates
from quire.system.hardware import detect
from tests.golden.torch_heads import TorchHead, make_head

MOST = 3
Made = tuple[TorchHead, Path, dict[str, Any]]
METHODS = {
    "nextn": "mtp", "deepseek-v3": "mtp", "mtp": "mtp", "qwen3-next": "mtp", "qwen3.5-moe": "mtp",
    "eagle": "eagle", "eagle3": "eagle3",
}  # fmt: skip
FORMS = [*METHODS, "eagle3-normed"]


@pytest.fixture(scope="module")
def made(request: Any, tmp_path_factory: Any) -> Made:
    form, normed = request.param.removesuffix("-normed"), request.param.endswith("-normed")
    folder = tmp_path_factory.mktemp(form)
    head, path = make_head(form, folder, normed)
    config = {
        "method": METHODS[form],
        "num_speculative_tokens": MOST,
        "num_speculative_tokens_per_batch_size": [[1, 64, MOST]],
    }
    return head, folder, config | ({"model": path} if form.startswith("eagle") else {})


BOTH = pytest.mark.parametrize("made", ["mtp", "eagle3"], indirect=True)
"""A head that reads the last norm's rows, and one that reads those of layers."""


class Watch:
    """Notes what a proposer drafts, and the logits of it."""

    def __init__(self, llm: LLM) -> None:
        runner: Any = llm._core.executor._worker._runner  # type: ignore[attr-defined]
        self.proposer = runner._passes._proposer
        self.drafts: dict[tuple[int, ...], list[int]] = {}
        self.logits: list[Any] = []
        self._propose, self._logits = self.proposer.propose, self.proposer._model.logits
        self.proposer.propose = self.propose
        self.proposer._model.logits = self.of_rows

    def of_rows(self, rows: Any) -> Any:
        found = self._logits(rows)
        self.logits.append(np.array(found))
        return found

    def propose(self, states: SequenceStates, slots: Column, most: Column) -> Column:
        counts = self._propose(states, slots, most)
        for slot, count in zip(slots.tolist(), counts.tolist(), strict=True):
            end = int(states.num_tokens[slot])
            tokens = tuple(states.token_ids[slot, :end].tolist())
            self.drafts[tokens] = states.token_ids[slot, end : end + count].tolist()
        return counts


def engine(folder: Path, config: dict[str, Any], **flags: Any) -> LLM:
    limits = {"max_model_len": 256, "block_size": 8, "num_threads": 1, "dtype": "float32"}
    return LLM(str(folder), speculative_config=config, **{**limits, **flags})


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)


def prompt(seed: int, count: int) -> dict[str, Any]:
    return {"prompt_token_ids": np.random.default_rng(seed).integers(2, 256, count).tolist()}


def check(
    head: TorchHead, drafts: dict[tuple[int, ...], list[int]], others: dict[int, int] | None = None
) -> int:
    """Compare all drafts; return how often there were some."""
    for tokens in sorted(
        drafts, key=len, reverse=True
    ):  # the head knows what a longer text begins with
        found = drafts[tokens]
        wanted, _ = head.drafts(list(tokens), len(found), others)
        assert found == wanted, f"behind {len(tokens)} tokens"
    return sum(bool(found) for found in drafts.values())


@pytest.mark.parametrize("made", FORMS, indirect=True)
def test_drafts_and_logits_are_those_of_torch(made: Made) -> None:
    head, folder, config = made
    with engine(folder, config) as llm:
        watch = Watch(llm)
        llm.generate([prompt(1, 37)], greedy(12), use_tqdm=False)
    assert check(head, watch.drafts) > 5
    calls = iter(watch.logits)
    for tokens, found in watch.drafts.items():
        for wanted in head.drafts(list(tokens), len(found))[1]:
            assert np.abs(next(calls)[0] - wanted.numpy()).max() < 1e-4


@pytest.mark.parametrize("made", ["nextn", "mtp", "eagle"], indirect=True)
def test_tensors_must_be_those_of_the_head(made: Made, tmp_path: Path) -> None:
    head, folder, config = made
    own = Path(config.get("model", folder))
    tensors = load_file(own / "model.safetensors")
    last = next(name for name in reversed(head.tensors) if name.endswith("norm.weight"))
    strange = last.replace("norm.weight", "gain.weight")
    without = {name: tensor for name, tensor in tensors.items() if name != last}
    for changed, why in (
        ({**tensors, strange: tensors[last].clone()}, f"Unexpected tensors: '{strange}'"),
        (without, f"'{last}' is missing"),
    ):
        shutil.copytree(own, tmp_path, dirs_exist_ok=True)
        save_file(changed, tmp_path / "model.safetensors")
        both = {**config, "model": str(tmp_path)} if "model" in config else config
        with pytest.raises(ConfigError, match=f"has no draft head that fits: .*{why}"):
            engine(folder if "model" in config else tmp_path, both)


@pytest.mark.parametrize(
    "made", ["eagle3", *(pytest.param(f, marks=pytest.mark.slow) for f in ("mtp", "qwen3-next"))],
    indirect=True,
)  # fmt: skip
@pytest.mark.skipif(detect().cores < 2, reason="every stage needs a core of its own")
def test_stages_draft_what_one_process_does(made: Made) -> None:
    """The last stage drafts, from rows of all; so each draft is accepted or not as before."""
    _, folder, config = made
    asked = [prompt(seed, 20 + 7 * seed) for seed in range(4)]
    params = [
        SamplingParams(
            temperature=0.7 * (i % 2), seed=i, max_tokens=24, ignore_eos=True, logprobs=1
        )
        for i in range(4)
    ]
    found = []
    for stages in (1, 2):
        flags = {"num_threads": stages, "num_gpu_blocks_override": 100}
        with engine(folder, config, pipeline_parallel_size=stages, **flags) as llm:
            outputs = llm.generate(asked, params, use_tqdm=False)
            scheduler = llm.stats.scheduler
        drafted = scheduler.spec_decoding
        assert drafted.num_draft_tokens > drafted.num_accepted_tokens > 0
        counts = drafted.num_draft_tokens, drafted.num_accepted_tokens_per_pos
        found.append((counts, [repr(output.outputs[0].logprobs) for output in outputs]))
    assert found[0] == found[1]


@BOTH
def test_chunks_preemption_and_rejected_drafts_change_no_draft(made: Made) -> None:
    """Each draft depends on its sequence's tokens alone."""
    head, folder, config = made
    flags = {"max_num_batched_tokens": 13, "max_num_seqs": 4, "enable_prefix_caching": False}
    with engine(folder, config, num_gpu_blocks_override=14, max_model_len=80, **flags) as llm:
        watch = Watch(llm)
        asked = [prompt(seed, count) for seed, count in enumerate((30, 3, 41, 8, 17))]
        llm.generate(asked, greedy(25), use_tqdm=False)
        stats = llm.stats.scheduler
    assert stats.num_preemptions
    assert stats.spec_decoding is not None
    drafted = stats.spec_decoding
    assert drafted.num_draft_tokens - drafted.num_accepted_tokens > 0
    assert check(head, watch.drafts) > 30


@BOTH
def test_rows_wait_while_nothing_is_drafted(made: Made) -> None:
    """More sequences than drafts are for decode first; the last one goes on alone, and drafts."""
    head, folder, config = made
    config = config | {"num_speculative_tokens_per_batch_size": [[1, 1, MOST]]}
    with engine(folder, config) as llm:
        watch = Watch(llm)
        asked = [prompt(seed, 10 + seed) for seed in range(3)]
        llm.generate(asked, [greedy(n) for n in (22, 41, 60)], use_tqdm=False)
    assert check(head, watch.drafts) > 3


@BOTH
def test_a_prefix_hit_has_the_heads_keys_and_values(made: Made) -> None:
    """All but the last are those of this text; that one is of the token that followed before."""
    head, folder, config = made
    with engine(folder, config) as llm:
        watch = Watch(llm)
        first = prompt(5, 29)
        (output,) = llm.generate([first], greedy(30), use_tqdm=False)
        text = first["prompt_token_ids"] + list(output.outputs[0].token_ids)
        watch.drafts.clear()
        llm.generate([{"prompt_token_ids": [*text, 7, 8, 9]}], greedy(9), use_tqdm=False)
        assert llm.stats.cached_tokens == 56
        assert check(head, watch.drafts) > 3
        watch.drafts.clear()
        other = (text[40] + 1) % 250 + 2
        llm.generate([{"prompt_token_ids": [*text[:40], other]}], greedy(20), use_tqdm=False)
        assert llm.stats.cached_tokens == 56 + 40
    assert check(head, watch.drafts, {39: text[40]}) > 3
