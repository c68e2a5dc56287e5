"""The requests of one repetition of `quire bench serve`: bodies, arrival times, clients."""

from __future__ import annotations

import argparse
import math
from typing import Any

from quire.bench.serving.datasets import DATASETS, Ask, complete
from quire.bench.serving.vllm_flags import fields
from quire.bench.serving.workload import Ramp, arrival_times
from quire.core.errors import ConfigError
from quire.system.records import dataclass

CHAT_PATH = "/v1/chat/completions"
COMPLETIONS_PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and the client's later turns.

    Attributes:
        arrival: seconds after the start at which it is due.
        follow_ups: later turns of the conversation.
        repeats: its prompt shares a prefix with an earlier one.
    """

    body: dict[str, Any]
    arrival: float = 0.0
    follow_ups: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Load:
    """One repetition's requests and how they are sent.

    Attributes:
        closed_loop: requests have no arrival times; each is sent when a client is free.
        fixed: every repetition sends the same prompts.
        silent: show no progress.
    """

    path: str
    requests: list[Request]
    num_clients: int
    closed_loop: bool
    fixed: bool = False
    silent: bool = False

    def __len__(self) -> int:
        """Return the number of requests, with each turn of a conversation."""
        return sum(1 + len(request.follow_ups) for request in self.requests)


def make_load(args: argparse.Namespace, model: str, repetition: int) -> Load:
    """Return the requests of one repetition (−1 is the warm-up), determined by `--seed`.

    Raises:
        ConfigError: a flag does not fit the data set, or its file is wrong.
    """
    args = complete(args)
    seed = [args.seed, repetition + 1]
    options: dict[str, Any] = {
        "model": model,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if args.ignore_eos:
        options["ignore_eos"] = True
    options |= fields(args)
    chat = args.endpoint == "chat"
    dataset = DATASETS[args.dataset_name]
    asks = dataset.make(args, seed)
    ramp = _ramp(args)
    arrivals = _arrivals(args, asks, ramp, seed)
    return Load(
        path=CHAT_PATH if chat else COMPLETIONS_PATH,
        requests=[
            Request(_body(options, ask, chat=chat), arrival, ask.follow_ups, ask.repeats)
            for ask, arrival in zip(asks, arrivals, strict=True)
        ],
        num_clients=args.num_clients,
        closed_loop=math.isinf(args.request_rate) and ramp is None and asks[0].arrival is None,
        fixed=dataset.fixed,
        silent=vars(args).get("disable_tqdm", False),
    )


def next_body(body: dict[str, Any], answer: str, follow_up: str) -> dict[str, Any]:
    """Return a conversation's next request: the previous one, its answer and the next turn."""
    if "messages" in body:
        new = [{"role": "assistant", "content": answer}, {"role": "user", "content": follow_up}]
        return {**body, "messages": [*body["messages"], *new]}
    return {**body, "prompt": f"{body['prompt']}{answer}\n{follow_up}"}


def _body(options: dict[str, Any], ask: Ask, *, chat: bool) -> dict[str, Any]:
    asked = [{"role": "user", "content": ask.prompt}] if chat else ask.prompt
    return {**options, "max_tokens": ask.output_len, "messages" if chat else "prompt": asked}


def _arrivals(
    args: argparse.Namespace, asks: list[Ask], ramp: Ramp | None, seed: list[int]
) -> list[float]:
    given = [ask.arrival for ask in asks if ask.arrival is not None]
    if not given:
        return arrival_times(len(asks), args.request_rate, args.burstiness, seed, ramp)
    if math.isfinite(args.request_rate) or ramp is not None:
        raise ConfigError(
            "A trace defines its own arrival times.",
            fix="Leave out --request-rate, --request-rates and the --ramp-up flags.",
            param="--request-rate",
        )
    return given


def _ramp(args: argparse.Namespace) -> Ramp | None:
    """Return the ramp that the flags describe.

    Raises:
        ConfigError: a flag is missing, or there is also a rate.
    """
    values = (args.ramp_up_strategy, args.ramp_up_start_rps, args.ramp_up_end_rps)
    if values == (None, None, None):
        return None
    if None in values or math.isfinite(args.request_rate):
        raise ConfigError(
            "A ramp needs --ramp-up-strategy, --ramp-up-start-rps and --ramp-up-end-rps, and no "
            "--request-rate.",
            param="--ramp-up-strategy",
        )
    return Ramp(*values)
