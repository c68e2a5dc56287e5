"""Attention of prompts by flash-attn and FlashInfer, which fakes stand in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from quire.core.errors import ConfigError
from quire.ops.metadata import AttentionRules
from quire.ops.triton import attention, flash
from quire.resolve.arguments import EngineArgs
from quire.resolve.device import attention_package
from tests.e2e.tiny_model import CONFIG, write_tiny_model
from tests.golden.test_graphs import generate
from tests.triton.fake_flash import install
from tests.triton.test_attention import filled, metadata

PACKAGES = ("flash_attn", "flashinfer")
CPU = torch.device("cpu")


def forbidden(*_: Any) -> Any:
    raise AssertionError("Quire's own attention is called")


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize(
    "given",
    [{}, {"window": 19}, {"softcap": 2.0}, {"causal": False}],
    ids=lambda given: next(iter(given), "causal"),
)
def test_prompts_are_given_to_the_package(
    package: Any, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = install(monkeypatch, package)
    attend = flash.prompt_attention(package, CPU, forbidden)
    news = [17, 4, 1] if given.get("causal", True) else [40, 33, 5]
    meta = metadata([40, 33, 5], news, 16)
    cache = filled("float16", meta, 4, 2, 64, torch.float16)
    rules = AttentionRules(0.2, **given)
    for seed in (5, 6):  # two layers
        q = torch.randn(sum(news), 4, 64, generator=torch.Generator().manual_seed(seed)).half()
        found, own = attend(q, cache, meta, rules), attention.paged_attention(q, cache, meta, rules)
        # Weights and results round to float16; values are about 1.
        assert torch.allclose(found.float(), own.float(), rtol=0, atol=4e-3)
    assert fake.calls == 2
    if package == "flashinfer":
        assert fake.plans == 1


def test_each_step_has_a_plan_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though all sizes are equal."""
    fake = install(monkeypatch, "flashinfer")
    attend = flash.prompt_attention("flashinfer", CPU, forbidden)
    for lengths in ([40, 20], [20, 40]):
        meta = metadata(lengths, [17, 17], 16)
        cache = filled("float16", meta, 4, 2, 64, torch.float16)
        q = torch.randn(34, 4, 64).half()
        rules = AttentionRules(0.2)
        own = attention.paged_attention(q, cache, meta, rules)
        found = attend(q, cache, meta, rules)
        assert torch.allclose(found.float(), own.float(), rtol=0, atol=4e-3)
    assert fake.plans == 2


@pytest.mark.parametrize("package", PACKAGES)
def test_the_rest_stays_with_the_kernel(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, package)
    seen: list[Any] = []
    attend = flash.prompt_attention(package, CPU, lambda *args: seen.append(args) or args[0])
    prompt, decode = metadata([40], [20], 16), metadata([40, 33], [1, 15], 16)
    half = filled("float16", prompt, 4, 2, 64, torch.float16)
    narrow = filled("float16", prompt, 4, 2, 24, torch.float16)
    whole = structs.replace(prompt, whole=np.ones(1, bool))
    q = torch.zeros(20, 4, 64).half()
    plain = AttentionRules[torch.Tensor](0.2)
    cases: list[tuple[Any, ...]] = [
        (torch.zeros(16, 4, 64).half(), half, decode, plain),
        (q, half, whole, plain),
        (q, half, prompt, plain._replace(sinks=torch.ones(4))),
        (q, half, prompt, plain._replace(window=24, chunked=True)),
        (q, half, prompt, plain._replace(causal=False, window=8)),
        (q, filled("int8", prompt, 4, 2, 64), prompt, plain),
        (q.float(), filled("float32", prompt, 4, 2, 64), prompt, plain),
        (torch.zeros(20, 4, 24).half(), narrow, prompt, plain),
    ]
    for case in cases:
        attend(*case)
    assert len(seen) == len(cases)
    assert fake.calls == 0
    attend(q, half, prompt, plain)
    assert fake.calls == 1


def test_long_sequences_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, "flash_attn")
    own: list[Any] = []
    attend = flash.prompt_attention("flash_attn", CPU, lambda *args: own.append(args) or args[0])
    meta = metadata([40, 33], [17, 4], 16)
    cache = filled("float16", meta, 4, 2, 64, torch.float16)
    q = torch.zeros(21, 4, 64).half()
    for limit in (73 * 2 * 2 * 64 * 2, 73 * 2 * 2 * 64 * 2 - 1):
        monkeypatch.setattr(flash, "COPIED_BYTES", limit)
        attend(q, cache, meta, AttentionRules(0.2))
    assert (fake.calls, len(own)) == (1, 1)


@pytest.mark.parametrize("package", PACKAGES)
def test_an_engine_on_the_fake_device(
    package: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts call the package once per layer; decode steps are graphs of Quire's kernels."""
    fake = install(monkeypatch, package)
    monkeypatch.setattr("quire.resolve.device.installed", lambda module: True)
    backend = {"flash_attn": "FLASH_ATTN", "flashinfer": "FLASHINFER"}[package]
    model = write_tiny_model(tmp_path, head_dim=64, num_attention_heads=1, num_key_value_heads=1)
    monkeypatch.setattr(flash, "LEAST_ROWS", 5)
    _, launches, device = generate(
        monkeypatch,
        str(model),
        run=False,
        tokens=4,
        dtype="float16",
        attention_backend=backend,
        load_format="dummy",
    )
    assert fake.calls == CONFIG["num_hidden_layers"]
    assert device.replayed > 0
    assert "attention" in [name for name, *_ in launches]


@pytest.mark.parametrize(("backend", "package"), [("FLASH_ATTN", "flash-attn"),
                                                  ("flashinfer", "flashinfer-python")])  # fmt: skip
def test_a_missing_package_is_named(backend: str, package: str) -> None:
    args = EngineArgs(ops="triton", attention_backend=backend)
    with pytest.raises(ConfigError, match=f"needs the package {package}") as error:
        attention_package(args, "cuda", [])
    assert f"pip install {package}" in str(error.value.fix)


@pytest.mark.parametrize(
    ("fields", "device", "why"),
    [
        ({"attention_backend": "TRITON_ATTN"}, "cuda", "chooses kernels for the machine"),
        ({"attention_backend": "FLASH_ATTN"}, "cpu", "Triton's kernels on a GPU"),
        ({"attention_backend": "FLASHINFER", "ops": "reference"}, "cuda", "not used here"),
    ],
)
def test_other_values_have_no_effect(fields: dict[str, Any], device: Any, why: str) -> None:
    notes: list[str] = []
    assert attention_package(EngineArgs(**{"ops": "triton", **fields}), device, notes) is None
    assert why in notes[0]


def test_the_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    assert attention_package(EngineArgs(ops="triton"), "cuda", notes) is None
    assert not notes
    monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "FLASHINFER")
    assert attention_package(EngineArgs(ops="triton"), "cuda", notes) is None
    assert notes == ["VLLM_ATTENTION_BACKEND=FLASHINFER has no effect: use --attention-backend."]


def test_the_bits_are_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.resolve.device.installed", lambda module: True)
    notes: list[str] = []
    args = EngineArgs(ops="triton", attention_backend="FLASH_ATTN")
    assert attention_package(args, "cuda", notes) == "flash_attn"
    assert "depend on what else is in the batch" in notes[0]
