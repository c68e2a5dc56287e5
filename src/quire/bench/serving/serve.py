"""`quire bench serve`: latency and throughput of an OpenAI-compatible server with many clients."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle, islice
from typing import TextIO

from quire.bench.energy import EnergyMeter, is_here
from quire.bench.machine import portable_name
from quire.bench.results.report import Row, print_grid, print_table, summarise
from quire.bench.serving import vllm_flags
from quire.bench.serving.datasets import complete
from quire.bench.serving.http_client import HTTPClient, HTTPStatusError, ask
from quire.bench.serving.load import Load, Request, make_load
from quire.bench.serving.sender import Outcome, send, stream_one
from quire.bench.serving.slo import Slo
from quire.bench.serving.waits import sample
from quire.bench.split import Reading, between, lag_ms, read_metrics
from quire.core.errors import ConfigError, QuireError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import engine_flags_from
from quire.system import env
from quire.system.records import dataclass

_POLL_SECONDS = 0.5
_SIZES = (
    *("dataset_name", "num_prompts", "input_len", "output_len", "num_prefixes", "prefix_len"),
    *("num_turns", "burstiness", "endpoint"),
)


@dataclass(frozen=True, slots=True)
class Measurement:
    """The row of one rate, and the requests of its last repetition."""

    row: Row
    outcomes: list[Outcome]


def run(args: argparse.Namespace) -> Row | list[Row]:
    """Measure the server at `--base-url`, or one started here and stopped at the end.

    Returns:
        a row; with `--request-rates` one row per rate.
    """
    args = vllm_flags.applied(args)
    if args.base_url:
        _check_flags(args)
        return _every_rate(args, args.base_url)
    from quire.bench.serving.server_process import running_server

    make_load(args, args.model, repetition=-1)  # a wrong flag or file fails before the start
    with running_server(args) as base_url:
        return _every_rate(args, base_url)


def _every_rate(args: argparse.Namespace, base_url: str) -> Row | list[Row]:
    if args.request_rates is None:
        measured = [observe(args, base_url)]
    elif math.isfinite(args.request_rate):
        raise ConfigError(
            "Give --request-rate or --request-rates, not both.", param="--request-rates"
        )
    else:
        measured = [
            observe(
                argparse.Namespace(**{**vars(args), "request_rate": rate}),
                base_url,
                first=i * args.repetitions,
            )
            for i, rate in enumerate(args.request_rates)
        ]
    if args.save_result or args.append_result or args.save_detailed:
        from quire.bench.serving.vllm_results import save

        for each in measured:
            print(f"Results are in {save(args, each.row, each.outcomes)}.", file=sys.stderr)
    if args.plot_dir is not None:
        from quire.bench.results import plots

        try:
            plots.draw(args.plot_dir, [(m.row, m.outcomes) for m in measured])
        except QuireError as error:  # the caller has yet to write the rows
            print(f"error: {error}", file=sys.stderr)
    return measured[0].row if args.request_rates is None else [m.row for m in measured]


def measure(args: argparse.Namespace, base_url: str) -> Row:
    """Return the row of the server at `base_url` under the load that the flags describe."""
    return observe(args, base_url).row


def observe(args: argparse.Namespace, base_url: str, first: int = 0) -> Measurement:
    """Warm each replica up with one request, then send each repetition's load.

    Args:
        first: number of the first repetition; prompts differ by number.
    """
    args, slo = complete(args), _slo(args)
    given = vars(args)
    base_url = base_url.rstrip("/").removesuffix("/v1")
    headers = {**env.key_header(), **dict(given.get("header") or ())}

    def client() -> HTTPClient:
        return HTTPClient(base_url, headers)

    model = _ready_model(client, args, base_url)
    reading = _reading(client())
    for _ in range(given.get("num_warmups", 1)):
        load = make_load(args, model, repetition=-1)
        asyncio.run(_warm_up(client, load, reading.replicas if reading is not None else 1))
    samples: list[Row] = []
    outcomes: list[Outcome] = []
    energy, tokens = EnergyMeter(), 0
    with _profile(client) if given.get("profile") else nullcontext():
        for repetition in range(first, first + args.repetitions):
            load = make_load(args, model, repetition)
            if load.fixed:
                _forget_prompts(client(), repetition)
            before = _reading(client())
            with energy:
                outcomes, elapsed = asyncio.run(send(load, client))
            tokens += sum(o.output_tokens for o in outcomes)
            after = _reading(client())
            found = sample(
                outcomes,
                elapsed,
                slo=slo,
                metrics=args.percentile_metrics,
                percentiles=args.metric_percentiles,
            )
            found |= {"split": {}, "event_loop_lag_ms": {}}
            if before is not None and after is not None:
                found["split"] = between(before, after).shares
                found["event_loop_lag_ms"] = lag_ms(before, after)
            samples.append(found)
    settings: Row = {
        "num_clients": args.num_clients,
        "request_rate": "inf" if math.isinf(args.request_rate) else args.request_rate,
    }
    row = summarise(settings, samples)
    if is_here(base_url):
        row |= energy.row(tokens)
    row |= {"model": portable_name(model)} | _sizes(args, len(load), slo) | vllm_flags.labels(args)
    return Measurement(row, outcomes)


def _sizes(args: argparse.Namespace, num_prompts: int, slo: Slo | None) -> Row:
    """Return the fields of a row that describe the load."""
    sizes = {name: getattr(args, name) for name in _SIZES if getattr(args, name) is not None}
    sizes["num_prompts"] = num_prompts
    if slo is not None:
        sizes["slo"] = str(slo)
    if args.ramp_up_strategy is not None:
        first, last = args.ramp_up_start_rps, args.ramp_up_end_rps
        sizes["ramp"] = f"{args.ramp_up_strategy} {first:g} {last:g}"
    return sizes


def print_result(result: Row | list[Row], out: TextIO) -> None:
    """Print latencies as a table of percentiles, and everything else with its range. For several
    rates, print one line each."""
    if isinstance(result, list):
        print_grid("bench serve", [_line(row) for row in result], out)
        return
    waits = [name for name in result if name.endswith("_ms") and "mean" in result[name]]
    print_table("bench serve", {k: v for k, v in result.items() if k not in waits}, out)
    print_grid(
        "milliseconds", [{"": name.removesuffix("_ms"), **result[name]} for name in waits], out
    )


def _line(row: Row) -> Row:
    """Return the row of one rate in brief."""
    line: Row = {"request_rate": str(row["request_rate"])}
    line |= {name: row[name] for name in ("requests_s", "output_tok_s")}
    for metric in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"):
        found = row.get(metric, {})
        line |= {f"{metric.removesuffix('_ms')}_{p}_ms": v for p, v in found.items() if p != "mean"}
    return line | {
        name: row[name] for name in ("goodput", "slo_attainment", "errors") if name in row
    }


def _slo(args: argparse.Namespace) -> Slo | None:
    if args.slo is not None and args.goodput is not None:
        raise ConfigError("Give --slo or --goodput, not both.", param="--slo")
    if args.goodput is not None:
        return Slo.parse_goodput(args.goodput)
    return None if args.slo is None else Slo.parse(args.slo)


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that only affect a server started here."""
    given = replace(
        EngineArgs.from_cli_args(args), model=EngineArgs().model, seed=EngineArgs().seed
    )
    if flags := engine_flags_from(given):
        raise ConfigError(
            f"{', '.join(flags)} cannot change the server at {args.base_url}.",
            fix="Start that server with them, or leave out --base-url to start one here.",
            param=flags[0].partition("=")[0],
        )


def _ready_model(client: Callable[[], HTTPClient], args: argparse.Namespace, url: str) -> str:
    """Return the model's name at the server, which may need --ready-check-timeout-sec to start."""
    deadline = time.monotonic() + vars(args).get("ready_check_timeout_sec", 0.0)
    while True:
        try:
            return _served_model(client(), args, url)
        except QuireError as error:
            if time.monotonic() > deadline or not isinstance(error.__context__, OSError):
                raise
        time.sleep(_POLL_SECONDS)


@contextmanager
def _profile(client: Callable[[], HTTPClient]) -> Iterator[None]:
    """Have the server profile itself during the block, also if that fails."""
    ask(client(), "POST", "/start_profile")
    try:
        yield
    finally:
        ask(client(), "POST", "/stop_profile")


def _served_model(client: HTTPClient, args: argparse.Namespace, url: str) -> str:
    """Return the model's name at the server: `--model`, or the only one served if it is unset.

    Raises:
        QuireError: the server does not answer, or lists no models.
    """
    try:
        listed = json.loads(ask(client, "GET", "/v1/models"))
        names = [str(entry["id"]) for entry in listed["data"]]
    except HTTPStatusError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = "does not answer" if isinstance(error, OSError) else "lists no models"
        raise QuireError(
            f"{url} {what}: {error}.", fix="Check --base-url and whether the server runs."
        ) from None
    if args.model in names:
        return str(args.model)
    asked = args.base_url and args.model != EngineArgs().model
    if len(names) == 1 and not asked:
        return names[0]
    raise ConfigError(
        f"The server does not serve {args.model!r}; it serves {', '.join(names) or 'nothing'}.",
        fix="Name one of them with --model.",
        param="--model",
    )


def _reading(client: HTTPClient) -> Reading | None:
    """Return the server's counters; None if it is not Quire."""
    try:
        return read_metrics(ask(client, "GET", "/metrics"))
    except (HTTPStatusError, ValueError):
        return None


def _forget_prompts(client: HTTPClient, repetition: int) -> None:
    """Empty the server's prefix cache, so that repetitions share nothing."""
    try:
        ask(client, "POST", "/reset_prefix_cache")
    except HTTPStatusError:
        if repetition == 1:
            print(
                "The server cannot clear its prefix cache (POST /reset_prefix_cache), so later "
                "repetitions may find cached prompts.",
                file=sys.stderr,
            )


async def _warm_up(client: Callable[[], HTTPClient], load: Load, replicas: int) -> None:
    """Send a request for each replica outside the measurement; raise the error of one that fails.

    They come at once, so that the router sends each to another replica.
    """

    async def one(request: Request) -> None:
        outcome, connection = Outcome(time.monotonic()), client()
        await stream_one(connection, load.path, request.body, outcome)
        await connection.close()
        outcome.read()
        if outcome.error is not None:
            raise QuireError(f"The first request failed: {outcome.error}")

    await asyncio.gather(*map(one, islice(cycle(load.requests), replicas)))
