"""`quire serve`."""

from __future__ import annotations

import argparse
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from quire.cli.lend import lend
from quire.cli.lora import add_lora_flags, lora_dir, lora_modules
from quire.cli.template import add_chat_template_flag, chat_template
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.field_flags import parse_size
from quire.resolve.flags import Flags, add_engine_flags, from_zero
from quire.server.http import listener
from quire.system import env
from quire.system.garbage import no_collection

if TYPE_CHECKING:
    from socket import socket

    from quire.frontend.client.core_client import ProcessClient
    from quire.server.http.tls import Tls
    from quire.server.options import Cors


_SAME_NAME = (
    "max_body_bytes", "max_queued_requests", "max_stored_responses", "strict_fields",
    "tool_call_parser", "reasoning_parser", "shutdown_timeout", "root_path",
    "trust_request_chat_template", "default_chat_template_kwargs", "return_tokens_as_token_ids",
)  # fmt: skip
"""Flags that are options of the server."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the HTTP flags and the engine's flags to `parser`."""
    http = Flags(parser.add_argument_group("http"))
    http("--host", "127.0.0.1", "address to listen on")
    http("--port", 8000, "port to listen on; 0 is any free one", type=_port, metavar="N")
    http(
        "--api-key",
        None,
        "key that clients send as a bearer token; repeatable (default: QUIRE_API_KEY)",
        action="append",
        metavar="KEY",
    )
    http("--allow-no-key", False, "listen beyond this machine without an API key")
    http("--uds", None, "Unix socket to listen on instead of host and port", metavar="PATH")
    node = Flags(parser.add_argument_group("several machines; see docs/cluster.md"))
    text = "which of --nnodes machines this is; 0 answers requests"
    node("--node-rank", 0, text, type=int)
    node(
        "--headless",
        False,
        "serve no HTTP: lend this machine's workers to node 0 (needs --node-rank 1 or higher), "
        "or its replicas (--data-parallel-size-local) to the machine of replica 0",
    )
    add_answer_flags(http)
    http("--max-body-bytes", "32MiB", "largest request body", type=parse_size)
    http(
        "--max-queued-requests",
        1024,
        "length of the queue beyond --max-num-seqs; further requests get 429 with Retry-After",
        type=from_zero,
        metavar="N",
    )
    text = "answers of /v1/responses to store in memory; 0 stores none"
    http("--max-stored-responses", 1024, text, type=from_zero, metavar="N")
    text = "accepted for vLLM; always on if the format is known"
    http("--enable-auto-tool-choice", False, text)
    http(
        "--strict-fields",
        False,
        "refuse fields without effect; by default they are ignored and reported in `warnings`",
    )
    http(
        "--enable-force-include-usage",
        False,
        "report usage at the end of every stream, even without stream_options",
    )
    http(
        "--trust-request-chat-template",
        False,
        "accept chat_template in requests; it runs in the tokenizer's sandbox",
    )
    http(
        "--root-path",
        "",
        "path prefix of a proxy, such as /llm, stripped by it or not (default: none)",
        type=_prefix,
        metavar="PATH",
    )
    text = "seconds for requests in progress after SIGTERM or SIGINT; then they fail"
    http("--shutdown-timeout", 25.0, text, type=_seconds, metavar="S")
    add_lora_flags(http)
    _add_tls_flags(http)
    _add_cors_flags(http)
    add_chat_template_flag(http)
    add_engine_flags(parser, positional=True)


def run(namespace: argparse.Namespace) -> int:
    """Serve until a signal.

    Raises:
        QuireError: the server cannot start.
    """
    with no_collection():
        from quire.frontend.client.core_client import ProcessClient
        from quire.frontend.client.core_process import CORE_COMMAND, core_command

    args = EngineArgs.from_cli_args(namespace)
    lends, command = namespace.headless or namespace.node_rank > 0, core_command(args)
    if lends or command != CORE_COMMAND:
        namespace.core.kill()
    if lends:
        return lend(args, namespace.node_rank, headless=namespace.headless)
    core = ProcessClient(command, namespace.core if command == CORE_COMMAND else None)

    def leave(*_: object) -> None:
        core.shutdown()
        os._exit(0)  # in the middle of an import nothing else is quiet

    before = signal.signal(signal.SIGTERM, leave)  # until the server has its own handler
    core.begin()
    try:
        return _serve(namespace, args, core)
    finally:
        signal.signal(signal.SIGTERM, before)
        core.shutdown()


def _serve(namespace: argparse.Namespace, args: EngineArgs, core: ProcessClient) -> int:
    fallback = env.api_key()
    keys = tuple(namespace.api_key or ([fallback] if fallback else []))
    if not all(keys):
        raise ConfigError("--api-key is empty.", param="--api-key")
    if namespace.uds is not None:
        with listener.at_path(namespace.uds) as bound:
            return _serve_on(bound, namespace, args, keys, core)
    listener.check_exposure(namespace.host, is_allowed=bool(keys) or namespace.allow_no_key)
    with listener.bind(namespace.host, namespace.port) as bound:
        return _serve_on(bound, namespace, args, keys, core)


def _serve_on(
    bound: socket,
    namespace: argparse.Namespace,
    args: EngineArgs,
    keys: tuple[str, ...],
    core: ProcessClient,
) -> int:
    with no_collection():
        from quire.frontend.client.configure import configure

        configured = configure(args, core)  # it loads its model during the imports that follow
        from quire.server.serve import ServeOptions, serve

    fields = {name: getattr(namespace, name) for name in _SAME_NAME}
    options = ServeOptions(
        **fields,
        api_keys=keys,
        model_names=tuple(namespace.served_model_name or ()),
        chat_template=chat_template(namespace),
        tls=_tls(namespace),
        cors=_cors(namespace),
        force_include_usage=namespace.enable_force_include_usage,
        lora_modules=lora_modules(namespace, args),
        lora_dir=lora_dir(namespace, args),
    )
    return serve(args, options, bound, _started(), configured)


def _started() -> float:
    """Return when the system started this process, on the monotonic clock; now, if unknown."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return now
    return now - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))


def add_answer_flags(add: Flags) -> None:
    """Add flags for the model's names and the parsers of its answers."""
    add(
        "--served-model-name",
        None,
        "names that clients may use as `model`; answers repeat it (default: MODEL)",
        nargs="+",
        metavar="NAME",
    )
    add(
        "--tool-call-parser",
        None,
        "format of the model's tool calls, such as hermes or llama3_json; none leaves them as "
        "text; docs/tool-calling.md lists all (default: from the chat template)",
        metavar="NAME",
    )
    add(
        "--reasoning-parser",
        None,
        "format of its reasoning: qwen3, seed_oss, gemma4, mistral, granite, openai_gptoss or none "
        "(default: from the chat template)",
        metavar="NAME",
    )

    add(
        "--default-chat-template-kwargs",
        None,
        "variables of the chat template that a request does not set, as JSON: "
        """'{"enable_thinking": false}'""",
        type=_variables,
        metavar="JSON",
    )
    text = "name tokens in log-probabilities `token_id:N`, because two may have the same text"
    add("--return-tokens-as-token-ids", False, text)


def _add_tls_flags(add: Flags) -> None:
    for flag, text in (
        ("--ssl-certfile", "certificate, with its chain, in PEM; turns TLS on"),
        ("--ssl-keyfile", "its private key in PEM, if it is not in the same file"),
        ("--ssl-ca-certs", "authorities, in PEM, that sign clients' certificates"),
    ):
        add(flag, None, text, metavar="FILE")
    add("--ssl-ciphers", None, "ciphers in OpenSSL's format (default: Python's)", metavar="LIST")
    text = "clients' certificates: 0 not requested, 1 checked if present, 2 required"
    add("--ssl-cert-reqs", 0, text, type=int, choices=(0, 1, 2))


def _add_cors_flags(add: Flags) -> None:
    for flag, default, text in (
        ("--allowed-origins", [], "origins whose pages may use the server (default: none)"),
        ("--allowed-methods", ["*"], "methods that these may use (default: all)"),
        ("--allowed-headers", ["*"], "headers that these may send (default: all)"),
    ):
        add(flag, default, f"list of {text}", type=_strings, metavar="JSON")
    text = "allow these origins to send the browser's cookies and credentials"
    add("--allow-credentials", False, text)


def _tls(namespace: argparse.Namespace) -> Tls | None:
    """Return the TLS settings; raises `ConfigError` if a certificate or an authority is missing."""
    from quire.server.http.tls import Tls

    certfile: str | None = namespace.ssl_certfile
    if certfile is None:
        for flag in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs", "ssl_ciphers"):
            if getattr(namespace, flag):
                name = "--" + flag.replace("_", "-")
                raise ConfigError(f"{name} needs a --ssl-certfile.", param=name)
        return None
    if namespace.ssl_cert_reqs and namespace.ssl_ca_certs is None:
        raise ConfigError(
            "--ssl-cert-reqs needs --ssl-ca-certs, to check clients' certificates against.",
            param="--ssl-cert-reqs",
        )
    return Tls(
        certfile, namespace.ssl_keyfile, namespace.ssl_ca_certs, namespace.ssl_cert_reqs,
        namespace.ssl_ciphers,
    )  # fmt: skip


def _cors(namespace: argparse.Namespace) -> Cors | None:
    """Return the CORS settings; raises `ConfigError` if every page could use a browser's
    credentials."""
    from quire.server.options import Cors

    origins = tuple(namespace.allowed_origins)
    if not origins:
        return None
    if "*" in origins and namespace.allow_credentials:
        raise ConfigError(
            "--allow-credentials with the origin '*' lets every page act as its reader.",
            fix="Name the origins.",
            param="--allow-credentials",
        )
    return Cors(
        origins,
        tuple(namespace.allowed_methods),
        tuple(namespace.allowed_headers),
        namespace.allow_credentials,
    )


def _strings(text: str) -> list[str]:
    if not text.lstrip().startswith(("[", "{", '"')):
        return [text]
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON list of strings") from None


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON object: {error}") from None


def _variables(text: str) -> dict[str, Any]:
    """Return variables of the chat template; none of them is Quire's own."""
    from quire.text.chat import RESERVED

    if taken := sorted(RESERVED.intersection(found := _object(text))):
        raise argparse.ArgumentTypeError(f"it may not set {', '.join(taken)}; leave them out")
    return found


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def _prefix(text: str) -> str:
    path = text.strip("/")
    if not path:
        return ""
    if "//" in path or not path.isprintable() or set(path) & set("?#% "):
        raise argparse.ArgumentTypeError(f"{text!r} is no path such as /llm")
    return f"/{path}"


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{text} is no port; ports are 0 to 65535")
    return port
