"""`quire bench latency`: prefill and decode of one batch, and the share of the memory floor."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence

from quire.bench import adapters, bandwidth
from quire.bench.energy import EnergyMeter
from quire.bench.engine import BenchEngine, open_engine
from quire.bench.floor import in_turns
from quire.bench.machine import peak_rss_bytes, portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row, summarise
from quire.bench.serving.workload import token_prompts
from quire.bench.split import between
from quire.core.config import STEP_TOKENS
from quire.core.errors import ConfigError
from quire.core.lora import LoRARequest
from quire.core.outputs import RequestMetrics


def run(args: argparse.Namespace) -> Row:
    """Run a warm-up, then `--repetitions` batches of new random prompts.

    Each batch runs again in turns with reads of the memory (see `against_floor`). With
    `--lora-rank` it runs once more with an adapter.
    """
    _check_batch(args)
    adapters.enable(args)
    with (
        open_engine(args) as engine,
        adapters.random_adapter(engine.config.model, args.lora_rank) as adapter,
    ):
        settings: Row = {
            "model": portable_name(args.model),
            **engine.types,
            "input_len": args.input_len,
            "output_len": args.output_len,
            "batch_size": args.batch_size,
            **{name: engine.llm.facts[name] for name in ("weight_bytes", "kv_bytes_per_token")},
        }
        one_batch(engine, args, repetition=-1)
        if adapter is not None:
            settings["lora_rank"] = args.lora_rank
            one_batch(engine, args, repetition=-1, adapter=adapter)
        samples, energy = [], EnergyMeter()
        with progress(total=args.repetitions, unit="batch") as bar:
            for repetition in range(args.repetitions):
                with energy:
                    sample = one_batch(engine, args, repetition)
                sample |= against_floor(engine, args, repetition, sample["decode_tok_s"])
                if adapter is not None:
                    adapted = one_batch(engine, args, repetition, adapter)
                    sample |= adapters.ratios(sample, adapted)
                samples.append(sample)
                bar.update()
    tokens = args.repetitions * args.batch_size * args.output_len
    return summarise(settings, samples) | energy.row(tokens)


def one_batch(
    engine: BenchEngine,
    args: argparse.Namespace,
    repetition: int,
    adapter: LoRARequest | None = None,
) -> Row:
    """Generate one batch and time it (repetition −1 is the warm-up)."""
    prompts = _prompts(engine, args, repetition)
    before = engine.reading_before()
    metrics = engine.generate(prompts, args.output_len, adapter)
    return {
        **timings(metrics, args.input_len, args.output_len),
        "peak_rss_bytes": peak_rss_bytes(),
        "split": between(before, engine.reading()).shares,
    }


def timings(metrics: Sequence[RequestMetrics], input_len: int, output_len: int) -> Row:
    """Return times and rates of a batch in which each request gave `output_len` tokens.

    * `ttft_s`: median time from arrival to first token.
    * `prefill_tok_s`: all prompt tokens, divided by the time from the first arrival until every
      request has its first token.
    * `tpot_ms`: mean time between a request's tokens.
    * `decode_tok_s`: the sum of the requests' rates. It is exact if the prompts fit into one step.
      Otherwise steps with others' prompts count too, so it is never too high.
    """
    gaps = [(m.last_token_time - m.first_token_time) / (output_len - 1) for m in metrics]
    start = min(m.arrival_time for m in metrics)
    filled = max(m.first_token_time for m in metrics)
    return {
        "prefill_tok_s": len(metrics) * input_len / (filled - start),
        "decode_tok_s": sum(1.0 / gap for gap in gaps),
        "ttft_s": statistics.median(m.first_token_time - m.arrival_time for m in metrics),
        "tpot_ms": statistics.fmean(gaps) * 1e3,
    }


def against_floor(
    engine: BenchEngine, args: argparse.Namespace, repetition: int, decode_tok_s: float
) -> Row:
    """Decode the batch again in turns with reads of the memory (see `floor.in_turns`).

    The reads use the engine's number of threads.

    Args:
        decode_tok_s: the batch's rate, which counts if no step of a turn could be timed.

    Returns:
        the medians of all turns: `bandwidth_gb_s`, and the share of the memory floor.
    """
    bytes_read = engine.step_bytes(args.batch_size, args.input_len, args.output_len)
    with bandwidth.reading(engine.config.num_threads) as read:
        steps = engine.steps(_prompts(engine, args, repetition), args.output_len)
        turns = list(in_turns(steps, read, args.batch_size)) or [(decode_tok_s, read())]
    shares = (bytes_read.floor_fraction(rate, args.batch_size, gb_s) for rate, gb_s in turns)
    return {
        "bandwidth_gb_s": statistics.median(gb_s for _, gb_s in turns),
        "floor_fraction": statistics.median(shares),
    }


def _prompts(engine: BenchEngine, args: argparse.Namespace, repetition: int) -> list[list[int]]:
    seed = [args.seed, repetition + 1]
    return token_prompts(args.batch_size, args.input_len, engine.vocab_size, seed)


def _check_batch(args: argparse.Namespace) -> None:
    if args.output_len < 2:
        raise ConfigError(
            f"--output-len is {args.output_len}; timing a decode needs at least 2 tokens.",
            param="--output-len",
        )
    step_tokens = args.max_num_batched_tokens or STEP_TOKENS
    if args.batch_size * args.input_len > step_tokens:
        print(
            f"The prompts, {args.batch_size} x {args.input_len} tokens, do not fit into one step "
            f"of {step_tokens}, so decode_tok_s includes some prefill. Raise "
            "--max-num-batched-tokens to separate them.",
            file=sys.stderr,
        )
    if args.batch_size > args.max_num_seqs:
        raise ConfigError(
            f"--batch-size is {args.batch_size}, but a step holds only {args.max_num_seqs} "
            "sequences.",
            fix=f"Set --max-num-seqs {args.batch_size} or more.",
            param="--batch-size",
        )
