"""Models with recurrent layers against Transformers, through the whole engine.

Their states are cut into chunks, found in the cache, shared, taken back and lost to preemption; the
greedy tokens are Transformers' all the same.
"""

from __future__ import annotations

from itertools import count, product
from pathlib import Path
from typing import Any

import pytest
import torch

from quire.core.messages import AddRequest
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.choice import make_executor
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from tests.golden.harness import is_planned
from tests.golden.tiny_models import RECURRENT_MODELS, VOCAB_SIZE, make_tiny

LOGIT_TOLERANCE = 1e-4
"""As in `test_architectures`."""
PROMPT_LEN = 45
NUM_TOKENS = 8
TORCH_MODELS = [
    name
    if name in ("lfm2-biases", "qwen3_5-moe", "granite4-hybrid", "falcon-h1", "mamba2")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in RECURRENT_MODELS
]
"""Each kind of recurrent layer in torch's ops; `make test-all` has the other models."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
NGRAM |= {"prompt_lookup_min": 1, "prompt_lookup_max": 2}


class Golden:
    """A model, a prompt, Transformers' greedy tokens and their log-probabilities."""

    def __init__(
        self, name: str, folder: Path, num_tokens: int = NUM_TOKENS, **changes: Any
    ) -> None:
        self.folder = folder
        model = make_tiny(name, seed=0, folder=folder, **changes)
        generator = torch.Generator().manual_seed(1)
        self.prompt = torch.randint(2, VOCAB_SIZE, (PROMPT_LEN,), generator=generator).tolist()
        tokens = list(self.prompt)
        with torch.no_grad():
            for _ in range(num_tokens):  # without a cache: with one it forgets `time_step_limit`
                logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
                tokens.append(int(logits[-1].argmax()))
        self.output, logits = tokens[PROMPT_LEN:], logits[PROMPT_LEN - 1 :]
        logprobs = torch.log_softmax(logits.float(), -1)
        self.logprobs = [float(row[t]) for row, t in zip(logprobs, self.output, strict=True)]


class Engine:
    """An engine core, which answers prompts of token ids greedily."""

    def __init__(self, golden: Golden, **flags: Any) -> None:
        flags = {"num_gpu_blocks_override": 64, "max_num_batched_tokens": 64, "ops": "cpu"} | flags
        flags = {"max_num_seqs": 4} | flags
        self.num_tokens = len(golden.output)
        args = EngineArgs(model=str(golden.folder), dtype="float32", **flags)
        config = resolve(args, detect()).config
        self.core = EngineCore(config, make_executor(config))
        if flags["ops"] == "cpu":
            assert is_planned(self.core.executor.facts)
        self._ids = count()

    def answer(
        self, prompts: list[list[int]], logprobs: list[float] | None = None
    ) -> list[list[int]]:
        """Return the greedy tokens; append each one's log-probability to `logprobs`."""
        wanted = None if logprobs is None else 0
        params = SamplingParams(
            temperature=0.0, max_tokens=self.num_tokens, ignore_eos=True, logprobs=wanted
        )
        tokens: dict[str, list[int]] = {}
        for prompt in prompts:
            name = str(next(self._ids))
            tokens[name] = []
            self.core.add(AddRequest(name, pack_tokens(prompt), params, arrival_time=0.0))
        while step := self.core.step():
            self.core.scheduler.check_integrity()
            for output in step.each():
                tokens[output.request_id] += output.new_token_ids
                if logprobs is not None and output.logprobs:
                    logprobs += [each.logprobs[0] for each in output.logprobs]
        return list(tokens.values())


@pytest.fixture(scope="module", params=RECURRENT_MODELS)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(request.param, tmp_path_factory.mktemp("recurrent"))


@pytest.fixture(scope="module")
def lfm2(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden("lfm2", tmp_path_factory.mktemp("lfm2"))


@pytest.fixture(scope="module")
def mamba2(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden("mamba2", tmp_path_factory.mktemp("mamba2"))


def test_equals_transformers(golden: Golden) -> None:
    check(golden, "cpu")


@pytest.mark.slow
@pytest.mark.skipif(detect().cores < 2, reason="every stage needs a core of its own")
def test_two_stages_equal_transformers(golden: Golden) -> None:
    """The second prompt begins with a state of the first one's."""
    engine = Engine(golden, pipeline_parallel_size=2)
    for _ in range(2):
        assert engine.answer([golden.prompt]) == [golden.output]
    engine.core.shutdown()


@pytest.mark.parametrize("golden", TORCH_MODELS, indirect=True)
def test_torch_equals_transformers(golden: Golden) -> None:
    check(golden, "reference")


def check(golden: Golden, ops: str) -> None:
    """In chunks, and again behind the cached prefix."""
    engine = Engine(golden, block_size=8, max_num_batched_tokens=19, ops=ops)
    for _ in range(2):
        logprobs: list[float] = []
        assert engine.answer([golden.prompt], logprobs) == [golden.output]
        assert logprobs == pytest.approx(golden.logprobs, rel=0, abs=LOGIT_TOLERANCE)
    assert engine.core.scheduler.stats().prefix_cache_hits == 40


@pytest.mark.matrix(together=1)
@pytest.mark.parametrize("block_size", [8, 16, 32])
@pytest.mark.parametrize("chunk", [4, 7, 64])
def test_chunks_and_blocks(lfm2: Golden, block_size: int, chunk: int) -> None:
    engine = Engine(lfm2, block_size=block_size, max_num_batched_tokens=chunk)
    others = [lfm2.prompt[:33] + [i] * (i + 1) for i in range(2, 4)]
    assert engine.answer([*others, lfm2.prompt])[-1] == lfm2.output
    assert engine.answer([lfm2.prompt] * 2) == [lfm2.output] * 2


@pytest.mark.slow
@pytest.mark.parametrize("name", RECURRENT_MODELS)
def test_128_tokens_for_all_chunks_and_blocks(name: str, tmp_path: Path) -> None:
    golden = Golden(name, tmp_path, num_tokens=128)
    for block_size, chunk in product((8, 16, 32), (1, 7, 64)):
        flags = {"block_size": block_size, "max_num_batched_tokens": chunk}
        engine = Engine(golden, max_num_seqs=1, **flags)
        for _ in range(2):  # again behind the cached prefix
            logprobs: list[float] = []
            assert engine.answer([golden.prompt], logprobs) == [golden.output], flags
            assert logprobs == pytest.approx(golden.logprobs, rel=0, abs=LOGIT_TOLERANCE), flags


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"async_scheduling": True},
        {"num_scheduler_steps": 3},
        {"speculative_config": NGRAM},
        {"enable_prefix_caching": False},
        {"num_gpu_blocks_override": 6},
    ],
)
def test_every_way_of_scheduling(lfm2: Golden, flags: dict[str, Any]) -> None:
    """Four requests at once, whose states live side by side; the last way preempts."""
    engine = Engine(lfm2, **flags)
    other = lfm2.prompt[:20] + [7] * 9
    answers = engine.answer([lfm2.prompt, other, lfm2.prompt, lfm2.prompt])
    assert [answers[i] for i in (0, 2, 3)] == [lfm2.output] * 3
    assert (engine.core.scheduler.stats().num_preemptions > 0) == ("num_gpu" in str(flags))


@pytest.mark.parametrize(("model", "disk"), [("lfm2", False), ("lfm2", True), ("mamba2", True)])
def test_states_come_back_from_host_memory_and_files(
    model: str, request: pytest.FixtureRequest, tmp_path: Path, disk: bool
) -> None:
    """Room for one prompt at a time: its blocks and its state leave the cache and come back. The
    blocks of Mamba-2 are empty."""
    golden: Golden = request.getfixturevalue(model)
    flags: dict[str, Any] = {"kv_offloading_size": (6e4 if disk else 2e6) / 2**30}
    flags |= {"kv_offloading_dir": str(tmp_path)} if disk else {"swap_space": 1e5 / 2**30}
    flags |= {"max_num_seqs": 1, "kv_cache_memory_bytes": 400_000} if model == "mamba2" else {}
    engine = Engine(golden, num_gpu_blocks_override=8, block_size=16, **flags)
    scheduler = engine.core.scheduler
    scheduler._admission._tier_cost = None  # a copy takes longer than computing a tiny model
    assert engine.answer([golden.prompt]) == [golden.output]
    fill = 18 if model == "lfm2" else 8  # prompts that use all slots for states
    engine.answer([[i] * 60 for i in range(2, 2 + fill)])
    assert engine.answer([golden.prompt]) == [golden.output]
    states = scheduler.kv.states
    assert states.tier.stats().loaded == 1
    assert (states.tier.stats().saved > 0) == disk


def test_accepted_drafts_leave_the_right_state(golden: Golden) -> None:
    """The second and third answers repeat the first, so most of their drafts are accepted."""
    suffix = {"method": "suffix", "num_speculative_tokens": 5}
    suffix["num_speculative_tokens_per_batch_size"] = [[1, 4, 5]]  # not chosen by predicted times
    engine = Engine(golden, speculative_config=suffix)
    other = golden.prompt[:20] + [7] * 9
    [plain] = Engine(golden).answer([other])
    for _ in range(3):
        assert engine.answer([golden.prompt, other]) == [golden.output, plain]
    spec = engine.core.scheduler.stats().spec_decoding
    assert spec.num_accepted_tokens > NUM_TOKENS
