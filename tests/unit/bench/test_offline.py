"""`latency` and `throughput` over a fake engine with a clock of its own."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from quire.bench import bandwidth, latency, throughput
from quire.bench.engine import BenchEngine
from quire.core.errors import ConfigError, QuireError
from quire.core.lora import LoRARequest
from quire.core.messages import CoreTimes
from quire.core.model_config import ModelConfig
from quire.core.outputs import CompletionOutput, RequestMetrics, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.metrics.stats import EngineStats
from tests.unit.bench.parsed import bench_args

MODEL = ModelConfig(
    architecture="llama",
    vocab_size=50,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=1,
    num_key_value_heads=1,
    head_dim=8,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)


TYPES = {"dtype": "float32", "quantization": None, "kv_cache_dtype": "float32", "isa": "avx2"}


class FakeLLM:
    """Each call's first tokens come after 0.5 s, each later one after `step` seconds more."""

    resolved = SimpleNamespace(config=SimpleNamespace(model=MODEL, num_threads=2))
    facts = TYPES | {"weight_bytes": 10_000, "kv_bytes_per_token": 64}

    def __init__(self, steps: list[float]) -> None:
        self.steps = steps
        self.prompts: list[list[list[int]]] = []
        self.params: list[SamplingParams] = []
        self.short = 0
        self.adapters: list[LoRARequest | None] = []
        self.stats = EngineStats()
        self.stepped = 0.0
        self.running = self.left = 0

    def generate(
        self,
        prompts: list[dict[str, list[int]]],
        params: SamplingParams,
        use_tqdm: bool,
        lora_request: LoRARequest | None = None,
    ) -> list[RequestOutput]:
        self.adapters.append(lora_request)
        self.prompts.append([p["prompt_token_ids"] for p in prompts])
        self.params.append(params)
        step = self.steps[min(len(self.prompts), len(self.steps)) - 1]
        count = params.max_tokens - self.short
        last = 10.5 + step * (count - 1)
        metrics = RequestMetrics(
            arrival_time=10.0, first_token_time=10.5, last_token_time=last, finished_time=last
        )
        now = 2.0 * len(self.prompts)
        self.stats.on_step(None, now, CoreTimes(model=0.375 * now, idle=0.625 * now))
        completion = CompletionOutput(0, "", [1] * count, finish_reason="length")
        return [
            RequestOutput(str(i), None, p, [completion], True, metrics=metrics)
            for i, p in enumerate(self.prompts[-1])
        ]

    def add_request(
        self, request_id: str, prompt: dict[str, list[int]], params: SamplingParams
    ) -> None:
        assert prompt["prompt_token_ids"] in self.prompts[-1]
        assert params.max_tokens is not None
        self.running, self.left = self.running + 1, params.max_tokens

    def has_unfinished_requests(self) -> bool:
        if not self.running:
            self.stepped = 0.0  # the next batch has its own times
        return self.running > 0

    def step(self) -> None:
        """Take 0.25 s, and give each request a token."""
        self.stepped += 0.25
        self.stats.generation_tokens += self.running
        self.left -= 1
        if not self.left:
            self.running = 0


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM([9.0, 0.02, 0.01, 0.04])  # the first is the warm-up
    llm: Any = fake
    # One second was idle, and does not count.
    engine = BenchEngine(llm, clock=lambda: fake.stats.last_step + 1.0 + fake.stepped)

    @contextmanager
    def opened(args: argparse.Namespace) -> Iterator[BenchEngine]:
        yield engine

    @contextmanager
    def reading(threads: int) -> Iterator[Callable[[], float]]:
        assert threads == 2
        yield lambda: 0.004

    monkeypatch.setattr(latency, "open_engine", opened)
    monkeypatch.setattr(throughput, "open_engine", opened)
    monkeypatch.setattr(bandwidth, "reading", reading)
    return fake


LATENCY = ("latency", "--batch-size", "4", "--input-len", "10", "--output-len", "5")


def test_latency_tells_what_an_adapter_costs(llm: FakeLLM) -> None:
    """Each batch is followed by the same one with the adapter, a fifth slower here."""
    llm.steps = [9.0, 9.0, 0.02, 0.024, 0.01, 0.012]
    row = latency.run(bench_args(*LATENCY, "--repetitions", "2", "--lora-rank", "2"))
    assert [adapter is not None for adapter in llm.adapters] == [False, True] * 3
    assert llm.prompts[2] == llm.prompts[3] != llm.prompts[4] == llm.prompts[5]
    assert row["lora_rank"] == 2
    assert row["lora_tpot_ratio"] == pytest.approx(1.2)
    assert row["lora_ttft_ratio"] == pytest.approx(1.0)


def test_latency(llm: FakeLLM) -> None:
    row = latency.run(bench_args(*LATENCY, "--model", "/somewhere/tiny"))
    assert list(row) == [
        *("model", *TYPES, "input_len", "output_len", "batch_size"),
        *("weight_bytes", "kv_bytes_per_token"),
        *("prefill_tok_s", "decode_tok_s", "ttft_s", "tpot_ms", "peak_rss_bytes", "split"),
        *("bandwidth_gb_s", "floor_fraction"),
        *("repetitions", "min", "max", "energy"),
    ]
    assert (row["split"]["model"], row["split"]["idle"]) == (0.75, 0.25)
    assert row["model"] == "tiny"
    assert {name: row[name] for name in TYPES} == TYPES
    assert row["prefill_tok_s"] == pytest.approx(4 * 10 / 0.5)
    assert row["decode_tok_s"] == pytest.approx(4 / 0.02)
    assert row["min"]["decode_tok_s"] == pytest.approx(4 / 0.04)
    assert row["max"]["decode_tok_s"] == pytest.approx(4 / 0.01)
    assert row["ttft_s"] == pytest.approx(0.5)
    assert row["tpot_ms"] == pytest.approx(20)
    assert row["peak_rss_bytes"] > 0
    assert row["bandwidth_gb_s"] == 0.004
    # In turns, 4 steps/s of 10,000 + 4 × 12.5 × 64 bytes, of 4 million bytes/s.
    assert row["floor_fraction"] == pytest.approx(4 * 13_200 / 4e6)
    assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_every_batch_is_new_and_complete(llm: FakeLLM) -> None:
    latency.run(bench_args(*LATENCY))
    assert [len(batch) for batch in llm.prompts] == [4] * 4
    prompts = [tuple(p) for batch in llm.prompts for p in batch]
    assert len(set(prompts)) == 16
    assert all(0 <= token < 50 for p in prompts for token in p)
    assert {(p.max_tokens, p.ignore_eos, p.temperature) for p in llm.params} == {(5, True, 0.0)}


def test_a_request_that_ends_early_is_an_error(llm: FakeLLM) -> None:
    llm.short = 1
    with pytest.raises(QuireError, match=r"4 of 5 tokens\. It ended with 'length'"):
        latency.run(bench_args(*LATENCY))


def test_batches_that_would_not_be_one(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--max-num-seqs 4"):
        latency.run(bench_args(*LATENCY, "--max-num-seqs", "3"))
    with pytest.raises(ConfigError, match="at least 2"):
        latency.run(bench_args("latency", "--output-len", "1"))
    latency.run(bench_args(*LATENCY, "--max-num-batched-tokens", "39"))
    assert "one step of 39" in capsys.readouterr().err


def test_first_tokens_at_different_times_never_flatter() -> None:
    early = RequestMetrics(arrival_time=0.0, first_token_time=1.0, last_token_time=5.0)
    late = RequestMetrics(arrival_time=0.0, first_token_time=3.0, last_token_time=5.0)
    row = latency.timings([early, late], input_len=6, output_len=5)
    assert row["prefill_tok_s"] == pytest.approx(2 * 6 / 3.0)
    assert row["decode_tok_s"] == pytest.approx(4 / 4.0 + 4 / 2.0)
    assert row["ttft_s"] == pytest.approx(2.0)
    assert row["tpot_ms"] == pytest.approx(750)


def test_throughput(llm: FakeLLM) -> None:
    args = ("--num-prompts", "6", "--input-len", "4", "--output-len", "3", "--repetitions", "2")
    row = throughput.run(bench_args("throughput", *args))
    assert list(row)[:7] == [
        *("num_prompts", "input_len", "output_len", "elapsed_s"),
        *("output_tok_s", "total_tok_s", "requests_s"),
    ]
    assert (row["num_prompts"], row["input_len"], row["output_len"]) == (6, 4, 3)
    assert [len(batch) for batch in llm.prompts] == [1, 6, 6]
    assert row["dtype"] == "float32"


def test_rates_by_hand() -> None:
    assert throughput.rates(2.0, num_prompts=6, input_len=4, output_len=3) == {
        "elapsed_s": 2.0,
        "output_tok_s": 9.0,
        "total_tok_s": 21.0,
        "requests_s": 3.0,
    }
