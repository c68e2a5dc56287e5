"""The executor on real forward passes: any batch equals one at a time, and Transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from quire.checkpoint.source import resolve
from quire.core.config import EngineConfig, OpsProvider
from quire.executor.worker import Worker
from quire.models.registry import model_config
from tests.golden.tiny_models import make_tiny
from tests.unit.executor.configs import config
from tests.unit.runner.fakes import Driver

WANTED = 16


def engine_config(path: Path, block_size: int, ops: OpsProvider) -> EngineConfig:
    return config(
        max_num_seqs=8,
        max_model_len=160,
        model_path=str(path),
        model=model_config(resolve(str(path)).config),
        load_format="auto",
        block_size=block_size,
        num_blocks=200,
        num_threads=torch.get_num_threads(),
        ops=ops,
    )


def driver_on(path: Path, block_size: int, seed: int, ops: OpsProvider = "cpu") -> Driver:
    worker = Worker(engine_config(path, block_size, ops))
    worker.start()
    assert "in torch" not in worker._runner.model.description
    return Driver(worker._runner, block_size, seed)


PARAMS: list[dict[str, Any]] = [
    {},
    {"logprobs": 5},
    {"temperature": 1.0, "seed": 3, "top_p": 0.9},
    {"temperature": 0.7, "seed": 4, "repetition_penalty": 1.2},
    {},
    {"prompt_logprobs": 2},
]


def run_mixed(driver: Driver, seed: int) -> None:
    """All at once: chunked, in changing order, with a preemption."""
    rng = np.random.default_rng(seed)
    step = 0
    while live := [n for n in driver.tokens if len(driver.output(n)) < WANTED]:
        budget, counts = 64, {}
        for name in rng.permutation(live).tolist():
            count = min(int(rng.integers(0, 17)), driver.pending(name), budget)
            if count:
                counts[name] = count
                budget -= count
        if counts:
            driver.step(counts)
        step += 1
        if step == 15:
            driver.preempt(live[0])


@pytest.fixture(scope="module")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("tiny-llama")
    return folder, make_tiny("llama", 0, folder)


@pytest.mark.parametrize(("ops", "block_size"), [("cpu", 8), ("reference", 16), ("cpu", 32)])
def test_any_batch_is_one_at_a_time(
    tiny_llama: tuple[Path, Any], ops: OpsProvider, block_size: int
) -> None:
    path, oracle = tiny_llama
    rng = np.random.default_rng(1)
    prompts = [rng.integers(2, 250, n).tolist() for n in (1, 40, 17, 5, 64, 33)]
    mixed, lone = (driver_on(path, block_size, seed, ops) for seed in (1, 2))
    for i, (prompt, params) in enumerate(zip(prompts, PARAMS, strict=True)):
        mixed.add(str(i), prompt, **params)
    run_mixed(mixed, seed=block_size)
    for i, (prompt, params) in enumerate(zip(prompts, PARAMS, strict=True)):
        name = str(i)
        lone.add(name, prompt, **params)
        lone.finish(name, WANTED, chunk=64)
        lone.removed.append(name)
        assert mixed.output(name) == lone.output(name)
        assert mixed.logprobs[name] == lone.logprobs[name]
        assert mixed.prompt_logprobs[name] == lone.prompt_logprobs[name]
    for i in (0, 1, 4):
        ids = torch.tensor([prompts[i]])
        expected = oracle.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=WANTED
        )
        assert mixed.output(str(i)) == expected[0, len(prompts[i]) :].tolist()


def test_a_real_model_continues_as_transformers_does(shared_dir: Path) -> None:
    from transformers import AutoModelForCausalLM

    path = shared_dir / "models" / "tinystories-656k"
    driver = driver_on(path, 16, 0)
    prompts = [[1, 50, 60, 70], [1, 300], [1, *range(400, 440)]]
    for i, prompt in enumerate(prompts):
        driver.add(str(i), prompt)
    run_mixed(driver, seed=0)
    oracle = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    for i, prompt in enumerate(prompts):
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            for _ in range(WANTED):
                following = oracle(ids).logits[0, -1].argmax()
                ids = torch.cat([ids, following.view(1, 1)], dim=1)
        assert driver.output(str(i)) == ids[0, len(prompt) :].tolist()
