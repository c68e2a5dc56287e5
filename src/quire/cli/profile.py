"""`quire profile`: one offline run, split by module, op and Python function."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import dataclasses
import json
import pstats
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.config import ProfilerConfig
from quire.core.extras import check_output, require
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, add_engine_flags

if TYPE_CHECKING:
    from quire.frontend.llm import LLM
    from quire.profile.layerwise import LayerwiseResults

Prompts = list[list[int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the run, the outputs and the engine's flags to `parser`."""
    add = Flags(parser.add_argument_group("run"))
    add("--input-len", 128, "tokens per prompt")
    add("--output-len", 32, "tokens generated per prompt; 1 profiles prompts only")
    add("--num-prompts", 4, "number of prompts, sent at once")
    add = Flags(parser.add_argument_group("output"))
    add("--layerwise", False, "print all modules as a tree")
    add("--json", None, "write both tables, nested", type=Path)
    add("--csv", None, "write the table of ops, or with --layerwise of modules", type=Path)
    add("--trace", None, "run again and write a trace for Perfetto", type=Path, metavar="DIR")
    text = "run again with front end and core under cProfile, and write files for pstats"
    add("--python", None, text, type=Path, metavar="DIR")
    add_engine_flags(parser, positional=True)


def run(namespace: argparse.Namespace) -> int:
    """Profile a run, print the tables and write the files.

    Raises:
        QuireError: the model cannot start or run.
    """
    args = _engine_args(namespace)
    check_output(namespace.csv, "--csv")
    check_output(namespace.json, "--json")
    prompts = _operations(namespace, args)
    if namespace.python is not None:
        _python(args, prompts, namespace.output_len, namespace.python)
    return 0


def _engine_args(namespace: argparse.Namespace) -> EngineArgs:
    args = EngineArgs.from_cli_args(namespace)
    if namespace.trace is None:
        return args
    require("torch", "--trace", "--trace")
    config = dataclasses.replace(
        args.profiler_config or ProfilerConfig(),
        profiler="torch",
        torch_profiler_dir=str(namespace.trace),
    )
    return dataclasses.replace(args, profiler_config=config)


def _operations(namespace: argparse.Namespace, args: EngineArgs) -> Prompts:
    """Profile the ops and write the trace; return the prompts."""
    from quire.bench.kernels.limits import known_or_measured
    from quire.bench.serving.workload import token_prompts
    from quire.frontend.llm import LLM
    from quire.profile.layerwise import layerwise_profile

    limits = known_or_measured()
    with LLM(**dataclasses.asdict(args)) as llm:
        config = llm.resolved.config
        warm_up, prompts = (
            token_prompts(
                namespace.num_prompts, namespace.input_len, config.model.vocab_size, [args.seed, i]
            )
            for i in range(2)
        )
        _generate(llm, warm_up, 2)
        llm.call("reset_prefix_cache")
        with layerwise_profile(llm, limits, config.num_threads) as profile:
            _generate(llm, prompts, namespace.output_len)
        _report(namespace, args, profile.results)
        if namespace.trace is not None:
            llm.call("reset_prefix_cache")
            llm.start_profile()
            _generate(llm, prompts, namespace.output_len)
            for path in llm.stop_profile():
                print(f"trace: {path} (open it at ui.perfetto.dev, or in TensorBoard)")
    return prompts


def _generate(llm: LLM, prompts: Prompts, output_len: int) -> None:
    from quire.core.sampling_params import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)


def _report(namespace: argparse.Namespace, args: EngineArgs, results: LayerwiseResults) -> None:
    seen = results.profile
    in_ops = sum(op.seconds for op in seen.ops)
    print(
        f"{args.model}: {seen.steps} steps, {seen.tokens} tokens, "
        f"{seen.num_seqs / max(1, seen.steps):.1f} sequences/step, {seen.wall_seconds:.3f} s; "
        f"model {seen.model_seconds / seen.wall_seconds:.1%}, "
        f"operations {in_ops / seen.wall_seconds:.1%}"
    )
    results.print_drafts()
    print()
    if namespace.layerwise:
        results.print_model_table()
        print()
        if results.experts:
            results.print_expert_table()
            print()
    results.print_summary_table()
    if namespace.csv is not None:
        if namespace.layerwise:
            results.export_model_stats_table_csv(namespace.csv)
        else:
            results.export_summary_stats_table_csv(namespace.csv)
    if namespace.json is not None:
        text = json.dumps(results.convert_stats_to_dict(), indent=2)
        namespace.json.write_text(text + "\n", encoding="utf-8")


def _python(args: EngineArgs, prompts: Prompts, output_len: int, folder: Path) -> None:
    """Profile Python in the same run, with the core in its own process."""
    from quire.profile.python import table

    front, core = asyncio.run(_profiled(args, prompts, output_len))
    folder.mkdir(parents=True, exist_ok=True)
    pstats.Stats(front).dump_stats(folder / "front.pstats")
    (folder / "core.pstats").write_bytes(core)
    for name in ("front", "core"):
        path = folder / f"{name}.pstats"
        print(f"\nPython of the {name}, {path}:\n{table(path)}")


async def _profiled(
    args: EngineArgs, prompts: Prompts, output_len: int
) -> tuple[cProfile.Profile, bytes]:
    """Return the front end's profile, and the core's in pstats' format."""
    from quire.core.sampling_params import SamplingParams
    from quire.frontend.async_llm import AsyncLLM

    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    engine = await AsyncLLM.start(args)

    async def one(prompt: list[int]) -> None:
        async for _ in engine.generate({"prompt_token_ids": prompt}, params):
            pass

    try:
        await one(prompts[0][:1])  # the first request also pays for imports and the like
        await engine.call("start_python_profile")
        front = cProfile.Profile()
        front.enable()
        await asyncio.gather(*map(one, prompts))
        front.disable()
        core: bytes = await engine.call("stop_python_profile")
    finally:
        engine.shutdown()
    return front, core
