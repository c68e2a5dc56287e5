"""`quire plan`: whether a model fits this machine, before any weight is read or downloaded."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from textwrap import fill
from typing import TYPE_CHECKING

from quire.checkpoint.presets import preset_config
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, add_engine_flags, engine_flags_from

if TYPE_CHECKING:
    from quire.explain.fit import Fit

_MIB, _GIB = 2**20, 2**30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the output and the engine's flags to `parser`."""
    add = Flags(parser)
    add("--json", False, "print the report as JSON")
    add(
        "--measure",
        False,
        "measure this machine's limits first; takes some seconds. Stop other programs first",
    )
    add = Flags(parser.add_argument_group("network between machines (--nnodes)"))
    add("--link-gbps", 10.0, "Gbit/s")
    add("--link-ms", 0.1, "delay of a message, one way")
    add_engine_flags(parser, positional=True)


def run(namespace: argparse.Namespace) -> int:
    """Print the report; return 1 if the model does not fit.

    Raises:
        QuireError: the model does not exist, or a flag is wrong.
    """
    import msgspec

    from quire.core.cost import Link
    from quire.explain.fit import fit
    from quire.explain.limits import load_limits
    from quire.resolve.engine import RANDOM_WEIGHTS
    from quire.system.hardware import detect

    args = EngineArgs.from_cli_args(namespace)
    hardware = detect()
    limits = load_limits(hardware.cores)
    if namespace.measure:
        from quire.bench.kernels.limits import measure_and_keep

        limits = measure_and_keep()
    if namespace.link_gbps <= 0.0 or namespace.link_ms < 0.0:
        raise ConfigError(
            f"--link-gbps is {namespace.link_gbps} and --link-ms {namespace.link_ms}; a network "
            "has a positive rate, and no negative delay.",
            param="--link-gbps",
        )
    link = Link(namespace.link_gbps * 1e9 / 8, namespace.link_ms / 1e3)
    report = fit(_without_weights(args), hardware, limits, link)
    if args.load_format != "dummy":  # the note is only true for this command
        notes = [note for note in report.notes if note != RANDOM_WEIGHTS]
        report = msgspec.structs.replace(report, notes=notes)
    if namespace.json:
        print(msgspec.json.format(msgspec.json.encode(report)).decode())
    else:
        sys.stdout.write(render(report, args))
    return 0 if report.fits else 1


def _without_weights(args: EngineArgs) -> EngineArgs:
    """Return arguments that load no weights: of a hub id, only the configuration is downloaded."""
    from pathlib import Path

    from quire.checkpoint.source import EMBEDDED

    local = args.model in EMBEDDED or Path(args.model).expanduser().exists()
    return args if local else replace(args, load_format="dummy")


def render(report: Fit, args: EngineArgs) -> str:
    sections = (
        _head(report), _memory(report), _verdict(report, args), _speed(report), _stages(report),
        _layouts(report), _reasons(report),
    )  # fmt: skip
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section))) + "\n"


def _head(report: Fit) -> Iterator[str]:
    kind, count = report.quantization or report.dtype, report.num_threads
    threads = f"{count} thread{'s' if count > 1 else ''}"
    yield (
        f"{report.model} · {report.parameters / 1e6:,.1f} M parameters · {kind} · "
        f"KV cache {report.kv_cache_dtype} · {threads if report.device == 'cpu' else 'on the GPU'}"
    )


def _memory(report: Fit) -> Iterator[str]:
    yield f"Memory, of {_size(report.budget)}"
    where = "a mapped file" if report.device == "cpu" else "host memory"
    offloaded = f"and {_size(report.offloaded)} in {where}"
    blocks = f"{report.num_blocks:,} blocks of {report.block_size} tokens"
    each = report.kv_bytes_per_token / 1024
    rows = [
        ("weights", report.weights, offloaded if report.offloaded else ""),
        ("activations", report.activations, "of the largest step, at most"),
        ("runtime", report.runtime, "Python and the engine, at most"),
        ("KV cache", report.kv_cache, f"{blocks}, {each:,.1f} KiB per token"),
        ("resident", report.resident, "expected, once the KV cache is full"),
    ]
    if report.states:
        note = f"{report.num_states:,} slots of recurrent layers, for requests and snapshots"
        rows.insert(-1, ("states", report.states, note))
    for name, size, note in rows:
        yield f"  {name:<12}{_size(size):>12}  {note}".rstrip()
    if report.host_tiers:
        yield f"  {'host tiers':<12}{_size(report.host_tiers):>12}  in addition"


def _verdict(report: Fit, args: EngineArgs) -> Iterator[str]:
    limit = report.max_model_len
    if report.fits:
        most, each = report.max_num_seqs, report.tokens // report.max_num_seqs
        if report.pooling:
            room = f"{report.sequences:,} × {limit:,} at once"
        elif each >= limit:
            room = f"all {most} sequences (--max-num-seqs) may have {limit:,}"
        else:
            room = f"{report.sequences:,} × {limit:,} at once, or {most} × {each:,}"
        yield f"It fits: {report.tokens:,} tokens in the KV cache; {room}."
        if report.changes:
            yield f"The model's {report.model_len:,} would fit with:"
            yield from _changes(report)
        if preset_config(args.model) is not None and args.load_format != "dummy":
            yield "With random weights; for an answer, name the model's folder or hub id:"
            args = replace(args, load_format="dummy")
        flags = engine_flags_from(replace(args, model="embedded"))
        yield "  " + shlex.join(["quire", "serve", report.model, *flags])
        return
    yield f"It does not fit: one sequence of {limit:,} tokens needs more than is left."
    if not report.changes:
        yield "  No change of the flags makes it fit here; use a smaller model, or more memory."
    yield from _changes(report)


def _changes(report: Fit) -> Iterator[str]:
    for change in report.changes:
        yield (
            f"  {change.flags:<56} {change.sequences:>4} × {change.max_model_len:,} in "
            f"{change.tokens:,} tokens"
        )


def _speed(report: Fit) -> Iterator[str]:
    if report.device != "cpu" or not (report.speed or report.pooling):
        return
    how = (
        "predicted from this machine's measured limits"
        if report.measured
        else "a cautious guess: nothing was measured here; see --measure"
    )
    if report.disturbance:
        how += f", while other processes used {report.disturbance:.1f} cores: see --measure"
    yield f"Speed, {how}"
    for speed in report.speed:
        who = "1 sequence" if speed.sequences == 1 else f"{speed.sequences} sequences"
        yield (
            f"  decode, {who:<14}{speed.output_tok_s:>9,.0f} tok/s  {speed.itl_ms:>8,.1f} ms per "
            f"token, at {speed.context:,} tokens of context"
        )
    what = "pooled" if report.pooling else "first token"
    yield (
        f"  a prompt of {report.prompt_len} tokens: {what} after {report.prompt_s * 1e3:,.0f} ms"
    )


def _stages(report: Fit) -> Iterator[str]:
    """Yield what each stage has, and whether one machine without stages is faster."""
    if not report.stages:
        return
    machines = f", on {report.nnodes} machines" if report.nnodes > 1 else ", on this machine"
    yield f"{len(report.stages)} pipeline stages{machines}"
    for stage in report.stages:
        link = f", after {stage.link_ms:.2f} ms of network" if stage.link_ms else ""
        yield (
            f"  stage {stage.stage:<6}{stage.layers:>3} layers  {_size(stage.weights):>10}  "
            f"{stage.step_ms:>8,.1f} ms per token{link}"
        )
    slower = [speed for speed in report.speed if speed.output_tok_s < speed.alone_tok_s]
    for speed in report.speed:
        yield (
            f"  {speed.sequences} at once: {speed.output_tok_s:,.1f} tok/s; one machine without "
            f"stages, if the model fits there: {speed.alone_tok_s:,.1f}"
        )
    if slower:
        most = slower[-1].sequences
        yield (
            f"  Up to {most} at once, one machine is faster: use one process, or "
            "--tensor-parallel-size on several memory nodes."
        )


def _layouts(report: Fit) -> Iterator[str]:
    """Yield what replicas would give, and which of them pay."""
    if not report.layouts:
        return
    from quire.explain.layouts import advice
    from quire.explain.surroundings import memory_nodes

    count, names = report.layouts[0].sequences, ("one process", "2 replicas", "prompts + answers")
    yield f"Replicas, predicted for {count} sequences at once"
    for name, each in zip(names, report.layouts, strict=True):
        yield (
            f"  {name:<18}{each.output_tok_s:>7,.0f} tok/s  {each.itl_ms:>8,.1f} ms per token, "
            f"{each.busy_itl_ms:,.1f} beside a prompt; first token {each.prompt_s * 1e3:,.0f} ms"
        )
    for sentence in advice(report.layouts, len(memory_nodes())):
        yield from _filled(sentence)


def _reasons(report: Fit) -> Iterator[str]:
    if report.notes:
        yield "Why"
    for note in report.notes:
        yield from _filled(note)


def _filled(text: str) -> Iterator[str]:
    yield fill(text, 100, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _size(count: int) -> str:
    return f"{count / _GIB:,.2f} GiB" if count >= _GIB else f"{count / _MIB:,.1f} MiB"
