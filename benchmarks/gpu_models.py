"""How fast whole models of random weights decode on a GPU, for `gpu_bars`: all in this process."""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from quire import LLM
from quire.bench.engine import BenchEngine
from quire.bench.latency import timings
from quire.bench.serving.workload import token_prompts
from quire.core.sampling_params import SamplingParams

Row = dict[str, Any]
REPETITIONS = 3


class Case(NamedTuple):
    """A model, and how its weights are stored.

    Attributes:
        fields: of `LLM`.
        eager: measure it without graphs, too.
        label: what rows call it, if not by its name.
    """

    name: str
    form: str
    fields: dict[str, Any]
    eager: bool = False
    label: str = ""


FORMS: dict[str, dict[str, Any]] = {
    "bf16": {}, "fp8": {"quantization": "fp8"}, "fp8_w8a8": {"quantization": "fp8_w8a8"},
    "int4": {"quantization": "int4_g128"},
}  # fmt: skip
GIVEN: dict[str, Any] = {
    "load_format": "dummy", "dtype": "bfloat16", "device": "cuda", "ops": "triton",
    "max_model_len": 1024, "max_num_seqs": 256, "kv_cache_memory_bytes": 2**32,
    "compilation_config": '{"cudagraph_capture_sizes": [1, 256]}',
    "enable_prefix_caching": False,
}  # fmt: skip
CASES = [
    Case(name, form, fields, eager=name == "llama-3.2-1b" and form == "bf16")
    for name in ("llama-3.2-1b", "llama-3.1-8b")
    for form, fields in FORMS.items()
]
EXPERTS: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
    "num_experts_per_tok": 8, "norm_topk_prob": True, "vocab_size": 151_936, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
"""Qwen3-30B-A3B, 8 of its 48 layers: making up all weights would take minutes."""


class Load(NamedTuple):
    """Streams that decode together; `alone` of them are also asked for alone."""

    streams: int
    input_len: int
    output_len: int
    alone: int


def models(card: str, bytes_per_second: float, *, real: bool) -> Iterator[Row]:
    """Yield rows of each model; small ones on the CPU where there is no card."""
    if not real:
        small = {"device": "cpu", "ops": "reference", "max_model_len": 64, "num_threads": 1}
        case = Case("embedded", "bf16", small)
        yield from _measured(case, card, bytes_per_second, Load(2, 4, 4, 2))
        return
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(EXPERTS))
        fields = {"skip_tokenizer_init": True}
        experts = Case(folder, "bf16", fields, label="qwen3-30b-a3b, 8 layers")
        yield from _cases([*CASES, experts], card, bytes_per_second)


def _cases(cases: list[Case], card: str, bytes_per_second: float) -> Iterator[Row]:
    """Yield the rows of the models; one that fails leaves the others."""
    for case in cases:
        whole = case._replace(fields=GIVEN | case.fields)
        try:
            yield from _measured(whole, card, bytes_per_second, Load(256, 64, 64, 4))
        except Exception as error:  # the other models are still worth a row
            yield {
                "what": f"{case.label or case.name} {case.form}",
                "card": card,
                "error": repr(error)[:500],
            }
        if case.eager:
            eager = whole._replace(fields=whole.fields | {"enforce_eager": True})
            yield from _measured(eager, card, bytes_per_second, None)


@contextmanager
def opened(name: str, fields: dict[str, Any]) -> Iterator[tuple[LLM, BenchEngine]]:
    """Load a model; afterwards its memory is free again."""
    llm = LLM(name, **fields)
    try:
        yield llm, BenchEngine(llm)
    finally:
        llm.shutdown()
        del llm
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _measured(case: Case, card: str, bytes_per_second: float, load: Load | None) -> Iterator[Row]:
    """Yield the rows of one engine: one stream, then `load`."""
    with opened(case.name, case.fields) as (llm, engine):
        known = {
            "card": card, "model": case.label or case.name, "form": case.form,
            "graphs": not llm.resolved.config.enforce_eager,
            "weight_bytes": llm.facts["weight_bytes"],
        }  # fmt: skip
        one = (1, 4, 8) if load is not None and load.streams < 16 else (1, 128, 128)
        yield known | decode(engine, *one, bytes_per_second)
        yield known | _drawn(llm, engine, one[2])
        if load is not None:
            yield known | decode(engine, *load[:3], bytes_per_second)
            yield known | _alone(llm, engine, load)


def decode(
    engine: BenchEngine, streams: int, input_len: int, output_len: int, bytes_per_second: float
) -> Row:
    """Return the rate of a batch by the host's clock, from its first tokens to its last ones."""
    read = engine.step_bytes(streams, input_len, output_len)
    samples = []
    for repetition in range(REPETITIONS + 1):
        prompts = token_prompts(streams, input_len, engine.vocab_size, [streams, repetition])
        samples.append(timings(engine.generate(prompts, output_len), input_len, output_len))
    samples = samples[1:]  # the first compiles kernels and captures graphs
    rates = [sample["decode_tok_s"] for sample in samples]
    rate = statistics.median(rates)
    share = read.floor_fraction(rate, streams, bytes_per_second / 1e9)
    return {
        "what": f"decode {streams} x {input_len} + {output_len}", "tok_s": rate,
        "range": [min(rates), max(rates)], "step_ms": 1e3 * streams / rate,
        "ttft_ms": 1e3 * statistics.median(sample["ttft_s"] for sample in samples),
        "step_bytes": read.weights + read.kv, "bandwidth_share": round(share, 4),
    }  # fmt: skip


def _drawn(llm: LLM, engine: BenchEngine, output_len: int) -> Row:
    """Return the rate of one stream whose tokens are drawn."""
    rates = []
    for repetition in range(2):
        (prompt,) = token_prompts(1, 16, engine.vocab_size, [7, repetition])
        params = SamplingParams(
            temperature=0.8, top_p=0.95, top_k=50, seed=1, max_tokens=output_len, ignore_eos=True
        )
        (output,) = llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        rates.append(timings([output.metrics], 16, output_len)["decode_tok_s"])
    return {"what": "decode 1, top_k 50, top_p 0.95", "tok_s": rates[-1]}


def _alone(llm: LLM, engine: BenchEngine, load: Load) -> Row:
    """Count the tokens of some streams that differ alone and in the batch."""
    prompts = token_prompts(load.streams, load.input_len, engine.vocab_size, [3])
    params = SamplingParams(temperature=0.0, max_tokens=load.output_len, ignore_eos=True)
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    together = llm.generate(asked, params, use_tqdm=False)
    differing = 0
    for number in range(0, load.streams, load.streams // load.alone):
        (alone,) = llm.generate(asked[number], params, use_tqdm=False)
        pairs = zip(alone.outputs[0].token_ids, together[number].outputs[0].token_ids, strict=True)
        differing += sum(a != b for a, b in pairs)
    tokens = load.alone * load.output_len
    return {"what": f"tokens of {tokens} that differ alone", "count": differing}
