"""Whole engines on a device that is not the CPU (`tests.fake_device`): nothing is left on the wrong
side, and what comes out is what the CPU gives, to the bit; offloaded weights included."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, LoRARequest, SamplingParams
from quire.core.structured_outputs import StructuredOutputsParams
from quire.executor.queued import QueueingWorker
from quire.models.weights.offload import OffloadPlan
from quire.ops.device import CPU
from quire.ops.torch_ops.metal import LACKS
from quire.ops.torch_ops.staged_copy import StagedCopier
from quire.system.gpu_facts import Gpu
from tests.e2e.tiny_adapter import write_tiny_adapter
from tests.e2e.tiny_model import write_tiny_model
from tests.fake_device import FakeDevice, held_bytes
from tests.golden.tiny_encoders import TEXTS, make_encoder
from tests.golden.tiny_models import FEW_KINDS, of_each_kind, of_each_type, save_byte_tokenizer

LIMITS = {"max_model_len": 128, "num_gpu_blocks_override": 40, "num_threads": 1}
PROMPTS = [list(range(3, 3 + n)) for n in (5, 40, 17)]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.01, seed=7, max_tokens=4),
    SamplingParams(
        temperature=0.7,
        seed=3,
        max_tokens=4,
        min_tokens=2,
        repetition_penalty=1.2,
        presence_penalty=0.3,
        frequency_penalty=0.2,
        logit_bias={5: 2.0},
        stop_token_ids=[9],
        logprobs=0,
    ),
]


Ask = Callable[[LLM], Any]
"""What is asked of an engine, and what of its answers is compared."""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDevice]:
    """The machine has one."""
    device = FakeDevice()
    monkeypatch.setattr("quire.system.hardware.detect_gpu", lambda: Gpu("fake", device.total_bytes))
    monkeypatch.setattr(
        "quire.ops.providers.open_device", lambda name, card=0: CPU if name == "cpu" else device
    )
    threads = torch.get_num_threads()
    yield device
    torch.set_num_threads(threads)


def asking(
    params: SamplingParams | Sequence[SamplingParams] = PARAMS,
    prompts: Sequence[Any] = PROMPTS,
    **given: Any,
) -> Ask:
    """Tokens, log-probabilities and texts."""
    asked = [{"prompt_token_ids": p} if isinstance(p, list) else p for p in prompts]

    def ask(llm: LLM) -> Any:
        outputs = llm.generate(asked, params, use_tqdm=False, **given)
        assert all(output.outputs[0].token_ids for output in outputs)
        return [
            (o.outputs[0].token_ids, o.outputs[0].logprobs, o.prompt_logprobs, o.outputs[0].text)
            for o in outputs
        ]

    return ask


def on_cpu(model: str, ask: Ask, **fields: Any) -> Any:
    with LLM(model, **{**LIMITS, **fields, "device": "cpu", "ops": "reference"}) as llm:
        return ask(llm)


def on_gpu(gpu: FakeDevice, model: str, ask: Ask, **fields: Any) -> Any:
    with gpu.watching(), LLM(model, **{**LIMITS, **fields}) as llm:
        assert llm.facts["device"] == fields.get("device", "cuda")
        return ask(llm)


def agree(gpu: FakeDevice, model: str, ask: Ask | None = None, **fields: Any) -> None:
    """The same on the device as on the CPU, to the bit."""
    ask = ask or asking()
    assert on_gpu(gpu, model, ask, **fields) == on_cpu(model, ask, **fields)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of 256 bytes."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder)
    return str(folder)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.mark.parametrize("name", of_each_kind(of_each_type(), kinds=FEW_KINDS))
def test_every_architecture(name: str, tiny_folder: Path, tokenizer: str, gpu: FakeDevice) -> None:
    """A long prompt in chunks, beside a short one. How tokens are drawn is the same in all."""
    params = SamplingParams(temperature=0.0, max_tokens=2, logprobs=2, prompt_logprobs=1)
    ask, limits = asking(params, PROMPTS[:2]), {"max_num_batched_tokens": 32, "max_num_seqs": 8}
    agree(gpu, str(tiny_folder), ask, tokenizer=tokenizer, **limits)


@pytest.mark.parametrize("share", [None, 0.5])
def test_a_share_of_its_memory_is_for_the_model(
    share: float | None, gpu: FakeDevice, tiny: str
) -> None:
    """What lies there after a start, with the activations that the plan leaves room for."""
    gpu.total_bytes = 40 * 2**20
    fields = {} if share is None else {"gpu_memory_utilization": share}
    given: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 256, "num_threads": 1}
    before = held_bytes()
    with gpu.watching(), LLM(tiny, **given, **fields) as llm:
        budget = int((share or 0.9) * gpu.total_bytes)
        held = held_bytes() - before + int(str(llm.facts["activation_bytes"]))
        assert 0.99 * budget < held <= budget + 2**16  # inputs of a step, which are small


def test_steps_without_tokens(gpu: FakeDevice, tiny: str) -> None:
    """Nobody waits for the device between a long prompt's chunks, and its inputs are left alone."""
    ask = asking(SamplingParams(temperature=0.0, max_tokens=2), [list(range(3, 73))])
    agree(gpu, tiny, ask, max_num_batched_tokens=16, max_num_seqs=4)


def test_structured_output(gpu: FakeDevice, tiny: str) -> None:
    structured = StructuredOutputsParams(regex="(yes|no) [a-z]{2,5}")
    params = [
        SamplingParams(temperature=0.0, max_tokens=5, structured_outputs=structured),
        SamplingParams(temperature=1.0, seed=1, max_tokens=5, structured_outputs=structured),
        SamplingParams(
            temperature=1.0, seed=1, max_tokens=4, bad_words=["the"], allowed_token_ids=[5, 7, 250]
        ),
    ]
    agree(gpu, tiny, asking(params, ["Is it?", "Is it so?", "Once"]))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"kv_cache_dtype": "int8", "dtype": "bfloat16"}, marks=pytest.mark.slow),
        {"kv_cache_dtype": "int4", "dtype": "bfloat16"},
        pytest.param({"kv_cache_dtype": "fp8", "dtype": "float32"}, marks=pytest.mark.slow),
        {"kv_cache_dtype": "fp8_e5m2", "calculate_kv_scales": True, "dtype": "bfloat16"},
        {"dtype": "float16", "num_scheduler_steps": 3},
        {"quantization": "int4_g32"},
        {"quantization": "gptq", "load_format": "dummy"},
        {"quantization": "nf4"},
    ],
    ids=str,
)
def test_numbers_of_every_kind(fields: dict[str, Any], gpu: FakeDevice, tiny: str) -> None:
    agree(gpu, tiny, asking(PARAMS[1:], PROMPTS[1:]), **fields)


def test_blocks_leave_the_device_and_come_back(
    gpu: FakeDevice, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine blocks of 8 tokens, of which three requests want twelve."""
    moved = {"store": 0, "load": 0}
    for name in moved:
        real = getattr(StagedCopier, name)

        def counted(self: Any, moves: Any, name: str = name, real: Any = real) -> Any:
            moved[name] += len(moves)
            return real(self, moves)

        monkeypatch.setattr(StagedCopier, name, counted)
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    agree(
        gpu,
        tiny,
        asking(params, [list(range(3 + n, 23 + n)) for n in (0, 1, 2)]),
        num_gpu_blocks_override=9,
        max_model_len=64,
        block_size=8,
        swap_space=0.001,
        preemption_mode="swap",
        kv_offloading_size=0.001,
        kv_cache_dtype="fp8",
        dtype="float32",
    )
    assert moved["store"] > 0
    assert moved["load"] > 0


@pytest.mark.parametrize("swap_space", [0.0, 0.001])
def test_preempted_blocks_are_swapped_if_there_is_space(
    swap_space: float, gpu: FakeDevice, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []
    real = StagedCopier.store

    def store(self: StagedCopier, moves: Any) -> list[int]:
        stored.append(len(moves))
        return real(self, moves)

    monkeypatch.setattr(StagedCopier, "store", store)
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    fields: dict[str, Any] = {
        "num_gpu_blocks_override": 9, "max_model_len": 64, "block_size": 8,
        "swap_space": swap_space, "enable_prefix_caching": False,
    }  # fmt: skip
    if swap_space:
        fields["preemption_mode"] = "swap"

    def ask(llm: LLM) -> Any:
        room = int(str(llm.facts["host_kv_bytes"]))
        assert 0.9 * swap_space * 2**30 <= room <= swap_space * 2**30
        return asking(params, [list(range(3 + n, 23 + n)) for n in (0, 1, 2)])(llm)

    on_gpu(gpu, tiny, ask, **fields)
    assert (sum(stored) > 0) == (swap_space > 0)


def test_offloaded_weights_give_the_same(gpu: FakeDevice) -> None:
    share = 0.008
    facts: list[dict[str, object]] = []
    there: list[int] = []
    saved: list[int] = []

    def ask(llm: LLM) -> Any:
        facts.append(llm.facts)
        there.append(held_bytes())
        saved.append(OffloadPlan(llm.resolved.config).saved_bytes)
        return asking(PARAMS[:1], PROMPTS[:1])(llm)

    plain = on_gpu(gpu, "embedded", ask)
    gpu.pins.clear()
    assert on_gpu(gpu, "embedded", ask, cpu_offload_gb=share) == plain
    held = facts[1]["offloaded_weight_bytes"]
    assert isinstance(held, int)
    assert 0.5 * share * 2**30 <= held <= share * 2**30
    assert max(gpu.pins) == held
    assert saved[1] > 2**20
    assert abs(there[0] - there[1] - saved[1]) <= 2**12  # of the device: two layers stay there
    assert sum(gpu.pins) <= 1.05 * share * 2**30  # a step's inputs as well
    assert gpu.queued > 10
    assert facts[0]["weight_bytes"] == facts[1]["weight_bytes"]


def test_a_decode_step_waits_for_nothing_but_its_tokens(gpu: FakeDevice, tiny: str) -> None:
    """Copies a step: one of its inputs, and one back, of the greedy tokens and their logits. Of ten
    steps one has a new block, so that the block tables cross. Torch computes nothing on the
    host."""
    counts: list[tuple[int, int, int]] = []

    def ask(llm: LLM) -> None:
        for tokens in (4, 14):
            gpu.sent = gpu.read = gpu.on_host = 0
            params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
            asking(params, PROMPTS[:1])(llm)
            counts.append((gpu.sent, gpu.read, gpu.on_host))

    on_gpu(gpu, tiny, ask, enable_prefix_caching=False)
    few, more = counts
    assert [b - a for a, b in zip(few, more, strict=True)] == [10 + 1, 10, 0]


def test_the_next_step_is_queued_before_tokens_are_read(
    gpu: FakeDevice, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots pass to other sequences while their last tokens are on the way, and steps that the host
    takes part in come between."""
    told: list[str] = []
    for name in ("queue", "read"):
        real = getattr(QueueingWorker, name)

        def noted(self: Any, given: Any, name: str = name, real: Any = real) -> Any:
            told.append(name)
            return real(self, given)

        monkeypatch.setattr(QueueingWorker, name, noted)
    ends = [list(range(0, 258, 3)), list(range(1, 258, 4)), None]
    params = [
        SamplingParams(temperature=0.0, max_tokens=3 + n % 5, stop_token_ids=ends[n % 3])
        for n in range(9)
    ]
    params[5] = SamplingParams(temperature=0.0, max_tokens=3, repetition_penalty=1.5, logprobs=1)
    params[7] = SamplingParams(temperature=0.8, seed=3, max_tokens=4, min_tokens=2)
    prompts = [list(range(3 + n, 9 + 3 * n)) for n in range(9)]
    agree(gpu, tiny, asking(params, prompts), max_num_seqs=2, max_num_batched_tokens=24)
    assert told.count("queue") == told.count("read")
    assert "queue queue read queue read queue read" in " ".join(told)


@pytest.mark.parametrize("offloaded", [pytest.param(0.0, marks=pytest.mark.slow), 6e-5])
def test_adapters(offloaded: float, tmp_path: Path, gpu: FakeDevice, tiny: str) -> None:
    adapters = [
        LoRARequest(name, n, str(write_tiny_adapter(tmp_path / name, n)))
        for n, name in enumerate("ab", 1)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=0)
    ask = asking(params, lora_request=[None, *adapters])
    flags: dict[str, Any] = {"enable_lora": True, "max_loras": 2}
    found = on_gpu(gpu, tiny, ask, **flags, cpu_offload_gb=offloaded)
    assert found == on_cpu(tiny, ask, **flags)


def test_prompts_of_embeddings(gpu: FakeDevice, tiny: str) -> None:
    rows = torch.randn(20, 64, generator=torch.Generator().manual_seed(0)).numpy()
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=0)
    flags = {"enable_prompt_embeds": True, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    ask = asking(params, [{"prompt_embeds": rows}, PROMPTS[0]])
    agree(gpu, tiny, ask, **flags)


@pytest.mark.parametrize(
    ("kind", "labels", "how"),
    [("bert", 0, "MEAN"), ("roberta", 3, None), ("qwen3", 0, "MEAN"), ("qwen3", 2, "LAST"),
     ("llama", 0, "CLS")],
)  # fmt: skip
def test_models_that_pool(
    kind: str, labels: int, how: str | None, tmp_path: Path, gpu: FakeDevice
) -> None:
    make_encoder(tmp_path, kind, labels=labels)
    flags: dict[str, Any] = {"max_model_len": None}
    if how is not None:
        flags |= {"runner": "pooling", "pooler_config": {"pooling_type": how}}
    if kind in ("qwen3", "llama"):  # in chunks
        flags |= {"max_num_batched_tokens": 8, "max_num_seqs": 4}

    def ask(llm: LLM) -> Any:
        if labels:
            return [o.outputs.probs for o in llm.classify(TEXTS, use_tqdm=False)]
        return [o.outputs.embedding for o in llm.embed(TEXTS, use_tqdm=False)]

    agree(gpu, str(tmp_path), ask, **flags)


@pytest.fixture
def apple(gpu: FakeDevice, monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    """The machine has a GPU that lacks what Metal lacks."""
    gpu.lacks = LACKS
    there = Gpu("An Apple GPU", gpu.total_bytes, kind="mps")
    monkeypatch.setattr("quire.system.hardware.detect_gpu", lambda: there)
    return gpu


APPLES = [
    "llama-mha-tied-biases", "gemma2", "gpt-oss", "phimoe", "deepseek-v3",
    *(pytest.param(name, marks=pytest.mark.slow) for name in of_each_type()
      if name not in ("llama-mha-tied-biases", "gemma2", "gpt-oss", "phimoe", "deepseek-v3")),
]  # fmt: skip


@pytest.mark.parametrize("name", APPLES)
def test_every_architecture_without_float64(
    name: str, tiny_folder: Path, tokenizer: str, apple: FakeDevice
) -> None:
    """Experts are weighted in float32 there, so log-probabilities may differ in their last bits."""
    params = SamplingParams(temperature=0.0, max_tokens=3, logprobs=0)

    def ask(llm: LLM) -> Any:
        asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS[:2]]
        outputs = [o.outputs[0] for o in llm.generate(asked, params, use_tqdm=False)]
        return [o.token_ids for o in outputs], [o.cumulative_logprob for o in outputs]

    fields = {"tokenizer": tokenizer, "max_num_batched_tokens": 32, "max_num_seqs": 8}
    tokens, sums = on_gpu(apple, str(tiny_folder), ask, device="mps", **fields)
    wanted, wanted_sums = on_cpu(str(tiny_folder), ask, **fields)
    assert tokens == wanted
    assert sums == pytest.approx(wanted_sums, abs=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_cache_dtype": "int8", "dtype": "bfloat16"},
        {"quantization": "int4_g32"},
        pytest.param({"kv_cache_dtype": "int4", "dtype": "float16"}, marks=pytest.mark.slow),
        pytest.param({"quantization": "fp8", "load_format": "dummy"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_numbers_on_an_apple_gpu(fields: dict[str, Any], apple: FakeDevice, tiny: str) -> None:
    found = on_gpu(apple, tiny, asking(), device="mps", **fields)
    assert found == on_cpu(tiny, asking(), **fields)
