"""Captured decode steps on the fake device: the same launches and the same tokens as op by op."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quire import LLM, SamplingParams
from quire.system.gpu_facts import Gpu
from tests.e2e.tiny_model import write_tiny_model
from tests.fake_device import FakeDevice
from tests.golden.test_device import LIMITS
from tests.golden.tiny_models import of_each_type, save_byte_tokenizer
from tests.golden.tiny_recurrent import RECURRENT_MODELS
from tests.triton.fake_card import INTEGERS
from tests.triton.on_fake_device import launching

SOON = ("qwen3", "gpt-oss", "deepseek-v3", "lfm2")
"""Attention with norms, with sinks and experts, of latents, and beside a convolution."""


def generate(
    monkeypatch: pytest.MonkeyPatch, model: str, *, run: bool, tokens: int, **fields: Any
) -> tuple[list[Any], list[Any], FakeDevice]:
    """Return the tokens of three prompts, the launches, and the device."""
    device = FakeDevice(zeros=not run)
    monkeypatch.setattr("quire.system.hardware.detect_gpu", lambda: Gpu("fake", 2**34))
    monkeypatch.setattr("quire.ops.providers.open_device", lambda name, card=0: device)
    given = {**LIMITS, "device": "cuda", "ops": "triton", **fields}
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    prompts: Any = [{"prompt_token_ids": list(range(3, 3 + n))} for n in (5, 9, 2)]
    with (
        launching(device, monkeypatch, run=run) as launches,
        device.watching(),
        LLM(model, **given) as llm,
    ):
        outputs = llm.generate(prompts, params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs], launches.seen, device


@pytest.mark.slow
def test_graphs_give_the_tokens_of_single_ops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = str(write_tiny_model(tmp_path))
    eager, _, plain = generate(
        monkeypatch, model, run=True, tokens=5, dtype="float32", enforce_eager=True
    )
    found, _, device = generate(monkeypatch, model, run=True, tokens=5, dtype="float32")
    assert found == eager
    assert device.replayed > 0
    assert plain.replayed == 0


def test_graphs_of_all_sizes_share_memory_for_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of 36 sizes has logits of its own: 2 GiB for a vocabulary of 128,000."""
    model = str(write_tiny_model(tmp_path))
    for largest, given in ((20, {"max_num_seqs": 20}), (3, {"cuda_graph_sizes": [2, 3]})):
        fields: dict[str, Any] = {"dtype": "float32", **given}
        _, _, device = generate(monkeypatch, model, run=False, tokens=4, **fields)
        hidden, logits = device.lent[:2]
        assert device.reserved == largest * 4 * (hidden.shape[1] + logits.shape[1])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_byte_tokenizer(folder)
    return str(folder)


UNFUSED = "('enable_fp_fusion', False)"
"""Triton's default differs among its versions, and bits with it."""


def by_step(launches: list[Any]) -> list[list[str]]:
    """Return the names of the kernels before each choice of tokens."""
    steps: list[list[str]] = [[]]
    for name, *_ in launches:
        if name == "peaks":
            steps.append([])
        elif name not in ("settle", "fill"):
            steps[-1].append(name)
    return steps


@pytest.mark.parametrize(
    "name",
    [
        name if name in SOON else pytest.param(name, marks=pytest.mark.slow)
        for name in (*of_each_type(), *RECURRENT_MODELS)
    ],
)
def test_a_graph_has_the_launches_of_the_step(
    name: str, tiny_folder: Path, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing waits for the device or copies during a capture, or the fake device would fail."""
    given = {"run": False, "tokens": 4, "tokenizer": tokenizer}
    _, eager, _ = generate(monkeypatch, str(tiny_folder), **given, enforce_eager=True)
    _, found, device = generate(monkeypatch, str(tiny_folder), **given)
    assert device.replayed > 0
    assert not [n for n, *rest in found if n not in INTEGERS and UNFUSED not in rest]
    captured = False
    for own, wanted in zip(by_step(found), by_step(eager), strict=True):
        assert own in ([] if captured else wanted, wanted * 2)
        captured = captured or own == wanted * 2 != []
    assert captured


def test_a_step_is_one_graph_and_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two copies there, of inputs and tables; ids that the host does not know; the choice of tokens
    in two kernels; and one copy back. Three times a sequence begins a block."""
    model, counts = str(write_tiny_model(tmp_path)), []
    for tokens in (4, 20):
        _, launches, device = generate(monkeypatch, model, run=False, tokens=tokens)
        counts.append((len(launches), device.sent, device.read))
    few, more = counts
    assert [b - a for a, b in zip(few, more, strict=True)] == [3 * 16, 2 * 16 + 3, 16]


def test_a_prompt_waits_for_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies from memory that is not pinned would wait for the step before; weights may."""
    model, waited = str(write_tiny_model(tmp_path)), []
    for tokens in (64, 3):
        given: dict[str, Any] = {"max_num_batched_tokens": tokens, "max_num_seqs": 3}
        _, launches, device = generate(monkeypatch, model, run=False, tokens=1, **given)
        waited.append((device.waited, len(launches)))
    (few, one_step), (more, steps) = waited
    assert steps > 3 * one_step
    assert few == more


def test_a_refused_capture_leaves_single_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: FakeDevice, work: object, reserve: int) -> None:
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(FakeDevice, "capture", refuse)
    tokens, launches, device = generate(
        monkeypatch, str(write_tiny_model(tmp_path)), run=False, tokens=4
    )
    assert [len(each) for each in tokens] == [4, 4, 4]
    assert device.replayed == 0
    assert caplog.text.count("too old") == 1
    layer = ["rms_norm", "product", "rope_kv_write", "attention", "product", "rms_norm", "product"]
    assert by_step(launches)[1] == [*layer, "product"] * 2 + ["rms_norm", "product"]


def test_norms_quantize_for_int8_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the other two products of a layer come from attention and the activation."""
    model = str(write_tiny_model(tmp_path))
    given: dict[str, Any] = {"tokens": 2, "quantization": "int8", "dtype": "float16"}
    _, launches, _ = generate(monkeypatch, model, run=False, **given)
    step = by_step(launches)[0]
    layer = ["product", "rope_kv_write", "attention", "quantize_rows", "product", "rms_norm",
             "product", "quantize_rows", "product", "rms_norm"]  # fmt: skip
    assert step[: 1 + len(layer)] == ["rms_norm", *layer]
    assert step[-1] == "product"
    assert step.count("quantize_rows") == 2 * step.count("attention")
