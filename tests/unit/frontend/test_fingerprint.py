"""`system_fingerprint`: what changes an answer changes it, and nothing else does."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quire.frontend.fingerprint import fingerprint, with_adapter
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import Hardware
from tests.e2e.tiny_model import write_tiny_model

FACTS = {"isa": "avx512", "ops": {"linear": "native avx512"}}
MACHINE = Hardware(cores=2, memory_bytes=8 * 2**30, available_bytes=8 * 2**30)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("fingerprint") / "tiny")


def of(folder: Path, facts: dict[str, Any] = FACTS, **flags: Any) -> str:
    return fingerprint(resolve(EngineArgs(model=str(folder), **flags), MACHINE), facts, {}, None)


def test_what_changes_no_answer_changes_nothing(model: Path, tmp_path: Path) -> None:
    base = of(model)
    assert base.startswith("fp_")
    assert of(shutil.copytree(model, tmp_path / "elsewhere")) == base
    limits = {"max_num_seqs": 3, "max_model_len": 64, "block_size": 32, "num_threads": 2, "seed": 5}
    for name, value in limits.items():
        assert of(model, **{name: value}) == base, name


def test_what_changes_an_answer_changes_it(model: Path, tmp_path: Path) -> None:
    found = {
        of(model),
        of(model, dtype="bfloat16"),
        of(model, quantization="int8"),
        of(model, kv_cache_dtype="int8"),
        of(model, logprobs_mode="raw_logits"),
        of(model, hf_overrides='{"rms_norm_eps": 0.1}'),
        of(model, facts=FACTS | {"isa": "avx2"}),
    }
    folder = shutil.copytree(model, tmp_path / "trained")
    weights = bytearray((folder / "model.safetensors").read_bytes())
    for at in range(len(weights) // 2, len(weights), 512):
        weights[at] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    found.add(of(folder))
    tokens = (folder / "tokenizer.json").read_text()
    (folder / "tokenizer.json").write_text(tokens.replace("<|begin|>", "<|start|>"))
    found.add(of(folder))
    resolved = resolve(EngineArgs(model=str(model)), MACHINE)
    found.add(fingerprint(resolved, FACTS, {"top_k": 4}, None))
    found.add(fingerprint(resolved, FACTS, {}, "{{ messages }}"))
    ranks = replace(resolved, config=replace(resolved.config, tensor_parallel_size=2))
    found.add(fingerprint(ranks, FACTS, {}, None))
    assert len(found) == 12


def test_an_adapter_is_another_model(model: Path) -> None:
    base = of(model)
    assert len({base, with_adapter(base, b"a"), with_adapter(base, b"b")}) == 3
