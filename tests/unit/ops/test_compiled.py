"""Reference ops that torch compiles: when, what they return, and what happens if it fails."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from quire import LLM, SamplingParams
from quire.ops.metadata import Heads, KVCache
from quire.ops.torch_ops import activations, reference
from quire.ops.torch_ops.compiled import LEAST_ROWS, Compiler
from tests.e2e.tiny_model import write_tiny_model

ROWS = (LEAST_ROWS, 90, LEAST_ROWS + 1)


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.inference_mode():
        yield
    torch._dynamo.reset()


class Backend:
    """Runs a graph as it is, and counts graphs."""

    def __init__(self, *, fails: bool = False) -> None:
        self.graphs = 0
        self._fails = fails

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        if self._fails:
            raise OSError("no compiler\nhere")
        return graph.forward


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_each_op_is_compiled_once_for_all_numbers_of_rows() -> None:
    backend = Backend()
    ops = Compiler(backend).ops()
    gain, bias = noise(48), noise(48, seed=2)
    for rows in ROWS:
        x, y = noise(rows, 48), noise(rows, 48, seed=3)
        for name, args in {
            "rms_norm": (x, gain, 1e-6), "add_rms_norm": (x, y, gain, 1e-6),
            "layer_norm": (x, gain, bias, 1e-6), "add_layer_norm": (x, y, gain, bias, 1e-6),
        }.items():  # fmt: skip
            found, plain = ops[name](*args), getattr(reference, name)(*args)
            for a, b in zip([*found], [*plain], strict=True):
                assert torch.equal(a, b), name
        assert torch.equal(ops["activation"](x, "silu_mul"), activations.activation(x, "silu_mul"))
    assert backend.graphs == 5


def test_a_product_is_whole() -> None:
    backend = Backend()
    linear = Compiler(backend).ops()["linear"]
    for seed, epilogue in ((4, "none"), (5, "silu_mul"), (6, "silu_mul")):
        weight = reference.DenseWeight(noise(40, 96, seed=seed), noise(40), epilogue)  # type: ignore[arg-type]
        for rows in ROWS:
            x = noise(rows, 96)
            found, plain = linear(x, weight), reference.linear(x, weight)
            size = x.float().abs() @ weight.weight.float().abs().T
            # Both round once; silu and the product with a gate of a few units enlarge it.
            assert (found.float() - plain.float()).abs().max() <= size.max() * 2.0**-7
    assert backend.graphs == 2, "one for each epilogue"


def test_the_cache_is_written() -> None:
    backend = Backend()
    write = Compiler(backend).ops()["rope_kv_write"]
    cos_sin, gain = torch.randn(100, 16), noise(16)
    heads = Heads(4, 2, 16, gain, gain, eps=1e-6)
    for rows in ROWS:
        caches = [KVCache(*(torch.zeros(8, 2, 16, 16) for _ in "kv")) for _ in range(2)]
        q = [
            op(noise(rows, 8 * 16), torch.arange(rows), cos_sin, cache, torch.arange(rows), heads)
            for op, cache in zip((write, reference.rope_kv_write), caches, strict=True)
        ]
        assert torch.equal(*q)
        assert torch.equal(caches[0].k, caches[1].k)
        assert torch.equal(caches[0].v, caches[1].v)
        assert caches[0].v.any()
    assert backend.graphs == 1


def test_few_rows_are_not_compiled() -> None:
    backend = Backend()
    norm = Compiler(backend).ops()["rms_norm"]
    x, gain = noise(LEAST_ROWS - 1, 48), noise(48)
    assert torch.equal(norm(x, gain, 1e-6), reference.rms_norm(x, gain, 1e-6))
    assert backend.graphs == 0


def test_a_missing_backend_leaves_the_plain_ops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ImportError("no module of inductor")

    monkeypatch.setattr(torch, "compile", missing)
    norm, x, gain = Compiler("inductor").ops()["rms_norm"], noise(LEAST_ROWS, 48), noise(48)
    assert torch.equal(norm(x, gain, 1e-6), reference.rms_norm(x, gain, 1e-6))
    assert "no module of inductor" in caplog.text


def test_a_failure_leaves_the_plain_ops(caplog: pytest.LogCaptureFixture) -> None:
    backend = Backend(fails=True)
    ops = Compiler(backend).ops()
    x, gain = noise(LEAST_ROWS, 48), noise(48)
    for _ in range(2):
        assert torch.equal(ops["rms_norm"](x, gain, 1e-6), reference.rms_norm(x, gain, 1e-6))
        assert torch.equal(ops["activation"](x, "gelu"), activations.gelu(x))
    assert backend.graphs == 1
    assert caplog.text.count("torch.compile failed for rms_norm") == 1
    assert "no compiler" in caplog.text


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # inductor's own
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_an_engine_compiles_at_its_first_prompt(
    backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = str(write_tiny_model(tmp_path))
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=1)
    prompts: Any = [{"prompt_token_ids": [*range(3, 3 + n)]} for n in (80, 5)]
    given = {"ops": "reference", "device": "cpu", "num_gpu_blocks_override": 40}
    answers = []
    with caplog.at_level(logging.INFO):
        for fields in ({}, {"compilation_config": {"mode": 1, "backend": backend}}):
            with LLM(model, **given, **fields) as llm:  # type: ignore[arg-type]
                assert "compiled" not in caplog.text, "a start compiles nothing"
                answers.append(llm.generate(prompts, params, use_tqdm=False))
    for op in ("linear", "rms_norm", "add_rms_norm", "rope_kv_write"):
        assert f"compiled {op} in" in caplog.text
    assert "failed" not in caplog.text
    for plain, compiled in zip(*answers, strict=True):
        assert plain.outputs[0].token_ids == compiled.outputs[0].token_ids
        difference = plain.outputs[0].cumulative_logprob - compiled.outputs[0].cumulative_logprob
        assert abs(difference) < 1e-4
