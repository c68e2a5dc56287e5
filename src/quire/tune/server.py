"""Measure real servers on this machine: one server per configuration, one load per rate."""

from __future__ import annotations

import argparse
import json
import math
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np

from quire.bench.serving.http_client import HTTPClient, ask
from quire.bench.serving.load import Load, make_load
from quire.bench.serving.serve import measure as bench_serve
from quire.bench.serving.server_process import running_server
from quire.core.errors import ConfigError, QuireError
from quire.resolve.arguments import EngineArgs
from quire.simulate.workload import NO_PREFIX, Workload
from quire.tune.objective import Measure, Measurement
from quire.tune.space import Configuration, apply

PROFILE_STEPS = 300
PROFILE_SECONDS = 20.0


class ServerBench:
    """Starts servers and loads them.

    Args:
        args: the flags of `quire bench serve`, including the engine's.
        start: the engine that configurations are applied to.
    """

    def __init__(self, args: argparse.Namespace, start: EngineArgs) -> None:
        self._args = args
        self._start = start

    @contextmanager
    def __call__(self, configuration: Configuration) -> Iterator[Measure]:
        """Start a server with the configuration; it ends with the block.

        Raises:
            QuireError: the server does not become ready.
        """
        args = self._namespace(configuration)
        with running_server(args) as url:
            yield lambda rate: _measure(args, url, rate)

    def profile(
        self, configuration: Configuration, rate: float
    ) -> tuple[Measurement, dict[str, Any] | None]:
        """Return one more measurement, and the op profile meanwhile; None if the server has no
        profiler."""
        args = self._namespace(configuration)
        profiles: list[dict[str, Any] | None] = []
        with running_server(args) as url:
            _measure(args, url, rate)  # warm up, so that the profile has no first-time costs
            thread = threading.Thread(target=lambda: profiles.append(_profile_ops(url)))
            thread.start()
            found = _measure(args, url, rate)
            thread.join()
        return found, profiles[0]

    def _namespace(self, configuration: Configuration) -> argparse.Namespace:
        return argparse.Namespace(
            **{**vars(self._args), **asdict(apply(self._start, configuration))}
        )


def workload_at(args: argparse.Namespace, rate: float) -> Workload:
    """Return the load at a rate for the simulator, without the later turns of conversations."""
    load = make_load(_at_rate(args, rate), args.model, repetition=0)
    prompts = [_token_ids(request.body) for request in load.requests]
    return Workload(
        arrivals=np.array([request.arrival for request in load.requests]),
        input_lens=np.array([len(prompt) for prompt in prompts]),
        output_lens=np.array([request.body["max_tokens"] for request in load.requests]),
        prefixes=np.full(len(prompts), NO_PREFIX),
        prefix_lens=np.zeros(len(prompts), dtype=np.int64),
        prompts=prompts,
    )


def check_load(args: argparse.Namespace) -> Load:
    """Return the load, all at once.

    Raises:
        ConfigError: its flags are wrong, or it defines arrival times.
    """
    load = make_load(_at_rate(args, math.inf), args.model, repetition=0)
    if not load.closed_loop:
        raise ConfigError(
            "This load defines when requests arrive, but tuning has to choose the rate.",
            fix="Leave out traces and ramps.",
            param="--dataset-name",
        )
    return load


def _at_rate(args: argparse.Namespace, rate: float) -> argparse.Namespace:
    return argparse.Namespace(**{**vars(args), "request_rate": rate})


def _measure(args: argparse.Namespace, url: str, rate: float) -> Measurement:
    """Measure with an empty prefix cache, because every rate sends the same prompts."""
    try:
        ask(HTTPClient(url), "POST", "/reset_prefix_cache")
    except OSError as error:
        raise QuireError(f"The server did not empty its prefix cache: {error}.") from None
    row = bench_serve(_at_rate(args, rate), url)
    return msgspec.convert(row | {"rate": rate, "attainment": row["slo_attainment"]}, Measurement)


def _profile_ops(url: str) -> dict[str, Any] | None:
    wanted = {"steps": PROFILE_STEPS, "timeout_s": PROFILE_SECONDS}
    try:
        profile: dict[str, Any] = json.loads(ask(HTTPClient(url), "POST", "/profile_ops", wanted))
    except (QuireError, OSError, ValueError):
        return None
    return profile


def _token_ids(body: dict[str, Any]) -> list[int]:
    """Return a prompt's tokens; for a text one hash per word, so that equal prefixes stay equal."""
    prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    if isinstance(prompt, str):
        return [zlib.crc32(word.encode()) for word in prompt.split()] or [0]
    return [int(token) for token in prompt]
