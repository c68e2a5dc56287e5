"""`quire bench throughput`: many prompts at once, offline; tokens and requests per second."""

from __future__ import annotations

import argparse
import time

from quire.bench.energy import EnergyMeter
from quire.bench.engine import BenchEngine, open_engine
from quire.bench.machine import portable_name
from quire.bench.progress import progress
from quire.bench.results.report import Row, summarise
from quire.bench.serving.workload import token_prompts
from quire.bench.split import between


def run(args: argparse.Namespace) -> Row:
    """Run a short warm-up, then `--repetitions` rounds, each with new random prompts."""
    with open_engine(args) as engine:
        warm_up = token_prompts(1, args.input_len, engine.vocab_size, [args.seed, 0])
        engine.generate(warm_up, output_len=min(8, args.output_len))
        samples, energy = [], EnergyMeter()
        with progress(total=args.repetitions, unit="round") as bar:
            for repetition in range(args.repetitions):
                with energy:
                    samples.append(one_round(engine, args, repetition))
                bar.update()
        types = engine.types
    settings = {key: getattr(args, key) for key in ("num_prompts", "input_len", "output_len")}
    row = summarise(settings, samples)
    row |= energy.row(args.repetitions * args.num_prompts * args.output_len)
    return row | {"model": portable_name(args.model), **types}


def one_round(engine: BenchEngine, args: argparse.Namespace, repetition: int) -> Row:
    """Time one `LLM.generate` of all prompts."""
    seed = [args.seed, repetition + 1]
    prompts = token_prompts(args.num_prompts, args.input_len, engine.vocab_size, seed)
    before, start = engine.reading_before(), time.perf_counter()
    engine.generate(prompts, args.output_len)
    elapsed = time.perf_counter() - start
    split = between(before, engine.reading()).shares
    return {**rates(elapsed, args.num_prompts, args.input_len, args.output_len), "split": split}


def rates(elapsed: float, num_prompts: int, input_len: int, output_len: int) -> Row:
    """Return output tokens, all tokens (with prompts) and requests per second."""
    return {
        "elapsed_s": elapsed,
        "output_tok_s": num_prompts * output_len / elapsed,
        "total_tok_s": num_prompts * (input_len + output_len) / elapsed,
        "requests_s": num_prompts / elapsed,
    }
