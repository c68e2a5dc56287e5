"""`quire simulate`: predict the latency and throughput of a load, on any hardware."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np

from quire.core.config import EngineConfig, TierConfig
from quire.core.cost import PROFILES, HardwareProfile, page_size
from quire.core.errors import ConfigError
from quire.core.extras import check_output, check_picture
from quire.models.cost import roofline
from quire.resolve.arguments import EngineArgs
from quire.resolve.engine import resolve
from quire.resolve.flags import Flags, add_engine_flags, count
from quire.simulate.dispatch import halved, with_shared_kv
from quire.simulate.fleet import Front, Outcome, Replica, messages, simulate
from quire.simulate.hardware import THIS, load_profile, measure
from quire.simulate.router import new_router
from quire.simulate.workload import Workload, generate, read_trace
from quire.system.hardware import Hardware, detect

PERCENTILES = (50, 90, 99)
NOISY = 0.3
"""Difference of repeated measurements, relative to their median, that no idle machine has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the workload's, the machine's and the engine's flags to `parser`."""
    add = Flags(parser.add_argument_group("workload"))
    add(
        "--trace",
        None,
        "requests, a line of JSON each: arrival (seconds; without any, each is sent when a client "
        "is free), output_len, and input_len or prompt_token_ids; prefix and prefix_len where "
        "prompts share a beginning; or a .csv with such columns",
        type=Path,
    )
    add("--num-prompts", 1000, "requests")
    text = "requests per second; inf sends each as soon as a client is free"
    add("--request-rate", math.inf, text, metavar="R")
    add("--burstiness", 1.0, "shape of the gamma distribution of the gaps; 1 is a Poisson process")
    add("--num-clients", None, "requests at once (default: no limit)", type=count)
    add("--input-len", 128, "mean prompt tokens")
    add("--output-len", 64, "mean tokens of an answer")
    add(
        "--lengths",
        "fixed",
        "distribution of both lengths; lognormal is as in logs of chats",
        choices=["fixed", "uniform", "lognormal"],
    )
    text = "prompts begin with one of so many prefixes, in addition to their --input-len"
    add("--num-prefixes", 0, text, type=int)
    add("--prefix-len", 512, "tokens of each prefix")
    add = Flags(parser.add_argument_group("machine"))
    known = ", ".join(PROFILES)
    text = (
        f"{THIS} (measured here), {known}, or a file that --save-hardware wrote; each rank and "
        "stage has a GPU or TPU of its own"
    )
    add("--hardware", THIS, text, metavar="NAME")
    add("--save-hardware", None, "write the machine's profile, for --hardware", type=Path)
    add("--replicas", 1, "machines, each with its own copy of the model")
    add(
        "--router",
        "least-loaded",
        "which replica a request goes to; prefix-aware knows each cache",
        choices=["round-robin", "least-loaded", "prefix-aware"],
    )
    add = Flags(parser.add_argument_group("results"))
    add("--json", None, "write the results; append to a .jsonl file", type=Path)
    add("--plot", None, "draw the load and its latencies as PNG; needs matplotlib", type=Path)
    add_engine_flags(parser, {"load_format": "dummy"}, positional=True)


def run(args: argparse.Namespace) -> int:
    """Simulate, print a table, and write the requested files.

    Raises:
        ConfigError: a flag, the trace or the model is wrong.
    """
    check_output(args.json, "--json")
    check_output(args.save_hardware, "--save-hardware")
    check_picture(args.plot, "--plot")
    workload = _workload(args)  # first, because it reports wrong flags at once
    config, profile = _machine(args)
    if args.save_hardware:
        args.save_hardware.write_bytes(msgspec.json.format(msgspec.json.encode(profile)) + b"\n")
    _check_lengths(workload, config)
    count, config, profile = _replicas(args, config, profile)
    cost = roofline(config, profile)
    router = new_router(args.router, count, config, cost) if count > 1 else None
    configs = with_shared_kv(config, count)
    replicas = [Replica.on(each, profile) for each in configs]
    begin = time.perf_counter()
    outcome = simulate(
        workload,
        replicas,
        router,
        args.num_clients,
        Front(profile.request_overhead_seconds),
        halved(replicas, router, messages(workload), cost),
    )
    if profile.spread > NOISY:
        print(
            f"warning: repeated measurements of this machine differed by {profile.spread:.0%}, so "
            "other programs ran meanwhile. What follows may be wrong by as much. Measure again on "
            "an idle machine.",
            file=sys.stderr,
        )
    row: dict[str, Any] = {
        "model": Path(args.model).name,
        "dtype": config.dtype,
        "quantization": config.quantization,
        "hardware": profile.name,
        "hardware_spread": profile.spread,
        "replicas": count,
        "prefill_replicas": config.transfer.prefill_replicas if config.transfer else 0,
        "router": args.router,
        **summary(outcome, replicas),
        "num_blocks": replicas[0].num_blocks,
        "simulation_s": time.perf_counter() - begin,
    }
    print_summary(row, sys.stdout)
    if args.json is not None:
        _write(args.json, row)
    if args.plot is not None:
        from quire.simulate.plot import plot

        plot(args.plot, f"{row['model']} on {count} × {profile.name}", outcome, replicas)
    return 1 if outcome.failed else 0


def summary(outcome: Outcome, replicas: list[Replica]) -> dict[str, Any]:
    """Return the results: times in milliseconds, rates per second, shares from 0 to 1."""
    done = np.isfinite(outcome.last)
    seconds = float(np.nanmax(outcome.last, initial=0.0) - np.nanmin(outcome.sent, initial=0.0))
    tokens = int(outcome.tokens.sum())
    prompts = int(outcome.workload.input_lens[done].sum())
    times = {
        "ttft_ms": (outcome.first - outcome.sent)[done],
        "e2e_ms": (outcome.last - outcome.sent)[done],
    }
    spread: dict[str, dict[str, float]] = {
        name: {f"p{p}": float(np.percentile(values, p)) * 1e3 for p in PERCENTILES}
        for name, values in times.items()
        if len(values)
    }
    gaps = {f"p{p}": outcome.gaps.percentile(p / 100) * 1e3 for p in PERCENTILES}
    lived = [max(replica.clock(), 1e-9) for replica in replicas]
    used = [replica.history.kv_seconds for replica in replicas]
    return {
        "num_requests": len(outcome.sent),
        "failed": outcome.failed,
        "duration_s": seconds,
        "request_s": float(done.sum()) / seconds if seconds else 0.0,
        "output_tok_s": tokens / seconds if seconds else 0.0,
        "total_tok_s": (tokens + prompts) / seconds if seconds else 0.0,
        "ttft_ms": spread.get("ttft_ms", {}),
        "itl_ms": gaps,
        "e2e_ms": spread.get("e2e_ms", {}),
        "prefix_hit_share": outcome.cached / prompts if prompts else 0.0,
        "preemptions": sum(replica.history.preemptions for replica in replicas),
        "kv_share_mean": sum(used) / sum(lived),
        "kv_share_max": max(replica.history.kv_peak for replica in replicas),
        "steps": sum(replica.history.steps for replica in replicas),
        "idle_share": sum(replica.idle_share for replica in replicas) / len(replicas),
    }


def print_summary(row: dict[str, Any], out: TextIO) -> None:
    """Print the row: one line per result, percentiles in columns."""
    print("simulate", file=out)
    for name, value in row.items():
        if isinstance(value, dict):
            shown = "  ".join(f"{p} {number:,.4g}" for p, number in value.items())
        elif isinstance(value, float):
            shown = f"{value:,.4g}"
        else:
            shown = str(value)
        print(f"  {name:<18}{shown}", file=out)


def _machine(args: argparse.Namespace) -> tuple[EngineConfig, HardwareProfile]:
    """Return the engine's configuration on the simulated machine, and that machine."""
    here, engine = detect(), EngineArgs.from_cli_args(args)
    if args.hardware == THIS:
        config = resolve(engine, here).config
        return config, measure(engine, config)
    workers = engine.tensor_parallel_size * engine.pipeline_parallel_size
    workers = max(1, workers // max(1, engine.nnodes))  # `resolve` refuses what it does not know
    profile = load_profile(args.hardware).on_cards(workers)
    there = Hardware(max(here.cores, workers), profile.memory_bytes, profile.memory_bytes)
    if profile.accelerator:
        share = engine.memory_share("cuda")
        engine = replace(engine, gpu_memory_utilization=share)
    config = resolve(engine, there).config
    if profile.paged_by_length:
        if config.tiers != TierConfig():
            raise ConfigError(
                f"{profile.name} has other KV blocks than this machine, and tiers are sized by "
                "those of this machine.",
                fix="Leave out --swap-space and the --kv-offloading flags.",
                param="--hardware",
            )
        config = replace(config, block_size=page_size(config.scheduler.max_model_len))
    return config, profile


def _replicas(
    args: argparse.Namespace, config: EngineConfig, profile: HardwareProfile
) -> tuple[int, EngineConfig, HardwareProfile]:
    """Return the number of replicas, and the configuration and the machine of each.

    `--replicas` are machines. The engine's flags (`--data-parallel-size`, `--prefill-replicas`)
    divide one machine, and use the server's router.
    """
    count = len(EngineArgs.from_cli_args(args).replicas)
    if count > 1:
        if args.replicas > 1 or profile.accelerator:
            what = profile.name if profile.accelerator else f"--replicas {args.replicas}"
            raise ConfigError(
                f"data_parallel_size is {count}, which divides one machine with CPUs; got {what}.",
                fix="Use --replicas for several machines.",
                param="--data-parallel-size",
            )
        args.router = "prefix-aware"
        if args.hardware != THIS:  # that was measured with the threads of one replica
            profile = profile.part(count)
    config = replace(config, report_cache=args.router == "prefix-aware")
    return count if count > 1 else args.replicas, config, profile


def _workload(args: argparse.Namespace) -> Workload:
    if args.trace is not None:
        return read_trace(args.trace)
    return generate(
        args.num_prompts,
        rate=args.request_rate,
        burstiness=args.burstiness,
        input_len=args.input_len,
        output_len=args.output_len,
        lengths=args.lengths,
        num_prefixes=args.num_prefixes,
        prefix_len=args.prefix_len,
        seed=args.seed,
    )


def _check_lengths(workload: Workload, config: EngineConfig) -> None:
    longest = int((workload.input_lens + workload.output_lens).max())
    if longest > config.scheduler.max_model_len:
        raise ConfigError(
            f"The longest request has {longest} tokens, prompt and output together, and "
            f"max_model_len is {config.scheduler.max_model_len}.",
            fix="Shorten --input-len or --output-len, or raise --max-model-len.",
            param="--max-model-len",
        )


def _write(path: Path, row: dict[str, Any]) -> None:
    if path.suffix == ".jsonl":
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    else:
        path.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
