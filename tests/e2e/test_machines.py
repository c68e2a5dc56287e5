"""Machines, here groups of processes on the loopback, give one process's bits, whatever is asked
for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quire.core.sampling_params import SamplingParams
from quire.executor.node import Machine
from quire.frontend.llm import LLM
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.system.hardware import detect
from tests.certificate import write_pem
from tests.e2e.test_tensor_parallel import adapted, staged
from tests.e2e.tiny_adapter import write_tiny_adapter
from tests.e2e.tiny_model import byte_tokenizer, write_tiny_model
from tests.golden.tiny_models import RECURRENT_MODELS, TINY_MODELS, make_tiny
from tests.ports import free_port
from tests.unit.executor.test_nodes import KEY, SECONDS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(detect().cores < 2, reason="every rank needs a core of its own"),
]

TINY: dict[str, Any] = {
    "num_gpu_blocks_override": 64,
    "dtype": "float32",
    "max_model_len": 64,
    "num_threads": 1,
}


@contextmanager
def machines(nnodes: int, **fields: Any) -> Iterator[dict[str, Any]]:
    """The fields of node 0, while the other machines lend their workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUIRE_CLUSTER_KEY", KEY)
        given = {**fields, "nnodes": nnodes, "master_port": free_port()}
        config = resolve(EngineArgs(**given), detect()).config
        others = [Machine(config, node, KEY.encode()) for node in range(1, nnodes)]
        threads = [threading.Thread(target=other.lend, daemon=True) for other in others]
        for thread in threads:
            thread.start()
        yield given
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()


def of_machines(nnodes: int, **more: Any) -> list[tuple[list[list[int]], str]]:
    """Tokens and log-probabilities with one stage per machine."""
    fields = {"dtype": "float32", "max_model_len": 256, "pipeline_parallel_size": nnodes}
    with machines(nnodes, **fields, **more) as given:
        return staged(nnodes, **{n: v for n, v in given.items() if n not in fields})


@pytest.fixture(scope="module")
def alone() -> list[tuple[list[list[int]], str]]:
    """Structured output, sampling, penalties and log-probabilities of one process."""
    return staged(1, num_gpu_blocks_override=256)


@pytest.mark.parametrize(
    ("nnodes", "swaps"), [(2, True), (4, False)], ids=["two-with-swaps", "four-encrypted"]
)
def test_machines_give_one_process_bits(
    alone: list[tuple[list[list[int]], str]],
    nnodes: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    swaps: bool,
) -> None:
    if not swaps:
        monkeypatch.setenv("QUIRE_CLUSTER_TLS", write_pem(tmp_path / "cluster.pem"))
    fields: dict[str, Any] = {"num_gpu_blocks_override": 256}
    if swaps:
        fields = {
            "num_gpu_blocks_override": 18,
            "preemption_mode": "swap",
            "swap_space": 0.01,
            "kv_offloading_size": 0.001,
            "kv_offloading_dir": str(tmp_path),
            "async_scheduling": True,
        }
    assert of_machines(nnodes, **fields) == alone


def write_golden(name: str, folder: Path) -> None:
    """Write the tiny model of an architecture, with a tokenizer."""
    make_tiny(name, 0, folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))


def tiny_answers(folder: Path, **more: Any) -> list[str]:
    """Tokens and log-probabilities of the model in `folder`."""
    prompts: list[Any] = [{"prompt_token_ids": [*range(3, 3 + n)]} for n in (40, 7)]
    params = SamplingParams(temperature=0.0, max_tokens=6, logprobs=2, ignore_eos=True)
    with LLM(str(folder), **(TINY | more)) as llm:
        return [str(out.outputs[0]) for out in llm.generate(prompts, params)]


@pytest.mark.parametrize("name", TINY_MODELS | RECURRENT_MODELS)
def test_each_architecture(name: str, tmp_path: Path) -> None:
    """A stage on each of two machines."""
    write_golden(name, tmp_path)
    with machines(2, model=str(tmp_path), pipeline_parallel_size=2, **TINY) as given:
        del given["model"]
        assert tiny_answers(tmp_path, **given) == tiny_answers(tmp_path)


def test_two_machines_of_two_ranks_give_two_ranks_bits() -> None:
    two = {"tensor_parallel_size": 2, "num_gpu_blocks_override": 256}
    assert of_machines(2, **two) == staged(1, **two)


def test_adapters_of_machines(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model")
    for i in (1, 2):
        write_tiny_adapter(tmp_path / f"a{i}", i)
    flags = {"enable_lora": True, "max_loras": 2, "num_gpu_blocks_override": 256}
    fields = {"model": str(tmp_path / "model"), "pipeline_parallel_size": 2, **flags}
    with machines(2, **fields) as given:
        more = {n: v for n, v in given.items() if n not in {"model", *flags}}
        assert adapted(1, tmp_path, **more) == adapted(1, tmp_path)
