"""`quire explain`: find the causes of lost time, and the flags that help."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from quire.core.errors import ConfigError, QuireError
from quire.core.extras import check_output, check_picture
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, add_engine_flags, engine_flags_from
from quire.system import env

if TYPE_CHECKING:
    from quire.bench.explained import Demand
    from quire.explain.evidence import Evidence
    from quire.explain.report import Report

_LOAD = {
    "num_prompts": (8, "number of requests, sent at once"),
    "input_len": (128, "prompt tokens per request"),
    "output_len": (64, "tokens to generate per request"),
    "prefix_len": (0, "prompt tokens that all prompts share as a prefix"),
}


PATIENCE = 45.0
"""Seconds beyond the window that a server may take to answer; it waits 30 s for a first step."""


class SilentServerError(QuireError):
    """A server does not answer in time, or fails to."""

    code = "server_silent"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the source, the load, the results and the engine to `parser`."""
    add = Flags(parser.add_argument_group("what to explain (default: an offline run)"))
    text = "watch a running server, such as http://127.0.0.1:8000"
    add("--url", None, text, metavar="URL")
    add("--window", 5.0, "seconds to watch the server of --url", metavar="SECONDS")
    add("--profile", None, "explain a file of --save-profile", type=Path)
    add(
        "--measure",
        False,
        "measure this machine's limits again; takes some seconds. Stop other programs first",
    )
    add = Flags(parser.add_argument_group("load of an offline run"))
    for name, (default, text) in _LOAD.items():
        add(f"--{name.replace('_', '-')}", default, text, type=int)
    add = Flags(parser.add_argument_group("proof"))
    add(
        "--prove",
        False,
        "measure each change: run the engine without and with it, in turns. With --url, start own "
        "servers with the same load",
    )
    add("--repetitions", 3, "repetitions per pair", type=int)
    add = Flags(parser.add_argument_group("results"))
    add("--json", None, "write the report as JSON", type=Path)
    add("--plot", None, "write the roofline plot as PNG", type=Path)
    add("--save-profile", None, "write the evidence, for --profile", type=Path)
    add_engine_flags(parser, positional=True)


def run(namespace: argparse.Namespace) -> int:
    """Print the report, and write the requested files.

    Raises:
        QuireError: the arguments are wrong, or the server or file cannot be read.
    """
    import msgspec

    from quire.explain.text import render
    from quire.explain.whatif import explained

    _check(namespace)
    try:
        evidence, demand = _evidence(namespace)
    except SilentServerError as error:
        return _silent(namespace, error)
    report = explained(evidence)
    if namespace.prove:
        report = _proven(report, evidence, demand, namespace.repetitions)
    sys.stdout.write(render(report))
    for path, what in ((namespace.json, report), (namespace.save_profile, evidence)):
        if path is not None:
            _write(path, msgspec.json.format(msgspec.json.encode(what)) + b"\n")
    if namespace.plot is not None:
        from quire.explain.plot import plot

        plot(namespace.plot, f"{Path(evidence.args.model).name}: {report.verdict.cause}", report)
    return 0


def _silent(namespace: argparse.Namespace, error: SilentServerError) -> int:
    """Print why the server of --url does not answer, if this machine shows it."""
    from urllib.parse import urlsplit

    import msgspec

    from quire.explain.silent import silence

    address = urlsplit(namespace.url)
    local = address.hostname in {"127.0.0.1", "localhost", "::1"}
    finding = silence(address.port or 80) if local else None
    if finding is None:
        raise error
    sys.stdout.write(f"Verdict: {finding.cause}\n  {finding.text}\n")
    if namespace.json is not None:
        _write(namespace.json, msgspec.json.format(msgspec.json.encode(finding)) + b"\n")
    return 0


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}.") from None


def _check(namespace: argparse.Namespace) -> None:
    if namespace.url and namespace.profile:
        raise ConfigError("--url and --profile exclude each other: give one.", param="--profile")
    if namespace.url and not namespace.url.startswith(("http://", "https://")):
        raise ConfigError(
            f"--url is {namespace.url!r}, which is not an http:// or https:// address.",
            fix="Write for example http://127.0.0.1:8000.",
            param="--url",
        )
    for name in (*_LOAD, "repetitions"):
        value, least = getattr(namespace, name), 0 if name == "prefix_len" else 1
        if value < least:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{flag} is {value}; it must be at least {least}.", param=flag)
    if namespace.prefix_len >= namespace.input_len:
        raise ConfigError(
            f"--prefix-len is {namespace.prefix_len}, but prompts have only {namespace.input_len} "
            "tokens, and each needs one token of its own.",
            param="--prefix-len",
        )
    check_output(namespace.json, "--json")
    check_output(namespace.save_profile, "--save-profile")
    check_picture(namespace.plot, "--plot")
    if namespace.url or namespace.profile:
        source = "--url" if namespace.url else "--profile"
        if flags := engine_flags_from(EngineArgs.from_cli_args(namespace)):
            raise ConfigError(
                f"{', '.join(flags)} cannot change the engine of {source}.",
                fix="Leave them out.",
                param=flags[0].partition("=")[0],
            )


def _evidence(namespace: argparse.Namespace) -> tuple[Evidence, Demand]:
    """Return the evidence, and the load for `--prove`."""
    from quire.bench.explained import Demand, demand_of, observe
    from quire.bench.kernels.limits import known_or_measured, measure_and_keep
    from quire.explain.bounds import bounded
    from quire.explain.evidence import load

    offline = not (namespace.url or namespace.profile)
    if namespace.measure:
        measure_and_keep()
    elif offline:
        known_or_measured()
    if offline:
        from quire.bench.engine import open_engine

        demand = Demand(**{name: getattr(namespace, name) for name in _LOAD})
        with open_engine(namespace) as engine:
            warm = Demand(num_prompts=1, input_len=4, output_len=2)
            engine.generate(warm.prompts(engine.vocab_size, [0]), warm.output_len)
            return observe(engine, demand, [namespace.seed, 0]), demand
    evidence = (
        load(namespace.profile) if namespace.profile else ask(namespace.url, namespace.window)
    )
    window = bounded(evidence)[0].window
    return evidence, demand_of(window, evidence.config.scheduler.max_model_len)


def ask(url: str, window: float) -> Evidence:
    """Return the evidence of a running server.

    Raises:
        SilentServerError: it does not answer in time, or fails to.
        QuireError: it cannot be reached, or refuses to answer.
    """
    import urllib.error
    import urllib.request

    import msgspec

    from quire.explain.evidence import Evidence

    base = url.rstrip("/").removesuffix("/v1")
    asked = urllib.request.Request(
        f"{base}/explain?evidence=true&window={window:g}", headers=env.key_header()
    )
    try:
        with urllib.request.urlopen(asked, timeout=window + PATIENCE) as answer:
            return msgspec.json.decode(answer.read(), type=Evidence)
    except urllib.error.HTTPError as error:
        body = error.read(2000).decode(errors="replace")
        kind = QuireError if error.code < 500 else SilentServerError
        raise kind(f"{base} answered {error.code}: {body}") from None
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise SilentServerError(
                f"{base} did not answer in {window + PATIENCE:.0f} s.",
                fix="Look at its log and at the machine's other processes.",
            ) from None
        raise QuireError(
            f"{base} does not answer: {reason}.", fix="Check --url, and that the server runs."
        ) from None
    except msgspec.MsgspecError as error:
        raise QuireError(f"{base} is not a Quire server of this version: {error}.") from None


def _proven(report: Report, evidence: Evidence, demand: Demand, repetitions: int) -> Report:
    import msgspec

    from quire.bench.prove import prove

    proofs = prove(
        evidence.args, report.changes, demand, repetitions=repetitions, served=not evidence.offline
    )
    return msgspec.structs.replace(report, proofs=proofs)
