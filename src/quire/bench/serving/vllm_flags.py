"""The flags of `vllm bench serve` that name something else here, or what the requests ask for."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, from_zero

_HIDDEN = argparse.SUPPRESS
_ENDPOINTS = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
_BACKENDS = {"vllm": "completions", "openai": "completions", "openai-chat": "chat"}
_SAMPLING = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repetition_penalty": float,
}
_OURS = ("model", "stream", "stream_options", "prompt", "messages", "max_tokens")
"""Fields of a request that the benchmark itself sets."""


def endpoint(text: str) -> str:
    """Return `completions` or `chat`, also from vLLM's paths: argparse's `type`."""
    name = _ENDPOINTS.get(text, text)
    if name not in _ENDPOINTS.values():
        known = ", ".join([*_ENDPOINTS.values(), *_ENDPOINTS])
        raise argparse.ArgumentTypeError(f"{text!r} is none of {known}")
    return name


def add_requests(add: Flags) -> None:
    """Add the flags of the requests, and vLLM's names of the server, which the help hides."""
    for name, kind in _SAMPLING.items():
        add(f"--{name.replace('_', '-')}", None, _HIDDEN, type=kind)
    add("--logprobs", None, _HIDDEN, type=int)
    add(
        "--extra-body",
        None,
        "JSON object of more fields for each request. --temperature, --top-p, --top-k, --min-p, "
        "the penalties and --logprobs set their fields too (default: temperature 0)",
        type=_extra_body,
        metavar="JSON",
    )
    add("--header", None, "headers of each request", type=_pair, nargs="+", metavar="NAME=VALUE")
    add("--num-warmups", 1, "requests before the first repetition", type=from_zero)
    text = "time in which the server at --base-url may become ready (default: 0)"
    add("--ready-check-timeout-sec", 0.0, text, type=float, metavar="SECONDS")
    add("--profile", False, "call /start_profile before the first repetition, /stop_profile after")
    add("--backend --endpoint-type", None, _HIDDEN, choices=list(_BACKENDS))
    add("--host", None, _HIDDEN)
    add("--port", None, _HIDDEN, type=int)
    add("--served-model-name", None, _HIDDEN)
    add("--disable-tqdm", False, _HIDDEN)


def add_results(add: Flags) -> None:
    """Add the flags of vLLM's file of results."""
    add("--save-result", False, "write a JSON file with vLLM's names for the last repetition")
    add("--save-detailed", False, "the same with the times and the text of each request")
    add("--append-result", False, "the same, appended to the file")
    add("--result-dir", ".", "folder of that file", type=str, metavar="DIR")
    add("--result-filename", None, "its name (default: from label, rate, model and time)")
    add("--label", None, "text to store in the rows and in that file (default: the backend)")
    text = "more fields for the rows and that file"
    add("--metadata", None, text, type=_pair, nargs="+", metavar="NAME=VALUE")


def applied(args: argparse.Namespace) -> argparse.Namespace:
    """Return the flags under Quire's names.

    Raises:
        ConfigError: two flags contradict each other.
    """
    new = argparse.Namespace(**vars(args))
    if args.backend is not None:
        new.endpoint = _agreed(args, _BACKENDS[args.backend])
    if args.host is not None or args.port is not None:
        if args.base_url is not None:
            raise ConfigError(
                "Give --base-url, or --host and --port, not both.", param="--base-url"
            )
        host = args.host or "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        new.base_url = f"http://{host}:{args.port or 8000}"
    if new.base_url is None:
        return new
    if args.tokenizer is not None:
        note = "note: --tokenizer has no effect: the server counts the tokens of each request."
        print(note, file=sys.stderr)
        new.tokenizer = EngineArgs().tokenizer
    new.model = args.served_model_name or args.model
    return new


def fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that the flags add to each request's body."""
    given = vars(args)
    body = {name: given[name] for name in _SAMPLING if given.get(name) is not None}
    if given.get("logprobs") is not None:
        chat = args.endpoint == "chat"
        body |= {"logprobs": True, "top_logprobs": args.logprobs} if chat else {}
        body |= {} if chat else {"logprobs": args.logprobs}
    return body | (given.get("extra_body") or {})


def labels(args: argparse.Namespace) -> dict[str, str]:
    """Return the fields that --label and --metadata add to a row."""
    given = vars(args)
    label = {} if given.get("label") is None else {"label": args.label}
    return label | dict(given.get("metadata") or ())


def _agreed(args: argparse.Namespace, wanted: str) -> str:
    if args.endpoint not in ("completions", wanted):
        raise ConfigError(
            f"--backend {args.backend} asks for {wanted}, and --endpoint is {args.endpoint}.",
            fix="Leave one of them out.",
            param="--backend",
        )
    return wanted


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name.strip(), value.strip()


def _extra_body(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object")
    if own := [name for name in _OURS if name in body]:
        raise argparse.ArgumentTypeError(f"{own[0]} is the benchmark's own; it cannot be set")
    return body
