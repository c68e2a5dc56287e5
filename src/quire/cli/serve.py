"""`quire serve`."""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from quire.cli.lora import add_lora_flags, lora_dir, lora_modules
from quire.cli.template import add_chat_template_flag, chat_template
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.field_flags import parse_size
from quire.resolve.flags import add_config_flag
from quire.server.http import listener
from quire.system import env
from quire.system.garbage import no_collection

if TYPE_CHECKING:
    from socket import socket

    from quire.frontend.client.core_client import ProcessClient
    from quire.server.options import Cors
    from quire.server.serve import Tls


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model, the HTTP flags and the engine's flags to `parser`."""
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="the same as --model")
    http = parser.add_argument_group("http")
    http.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    http.add_argument(
        "--port",
        type=_port,
        default=8000,
        metavar="N",
        help="0 is any free port (default: %(default)s)",
    )
    http.add_argument(
        "--api-key",
        "--api_key",
        action="append",
        metavar="KEY",
        help="key that clients send as a bearer token; repeatable (default: QUIRE_API_KEY)",
    )
    http.add_argument(
        "--allow-no-key",
        action="store_true",
        help="listen beyond this machine without an API key",
    )
    node = parser.add_argument_group("several machines; see docs/cluster.md")
    node.add_argument(
        "--node-rank",
        "--node_rank",
        type=int,
        default=0,
        metavar="N",
        help="which of --nnodes machines this is; 0 answers requests (default: %(default)s)",
    )
    node.add_argument(
        "--headless",
        action="store_true",
        help="serve no HTTP: lend this machine's workers to node 0; needs --node-rank 1 or higher",
    )
    add_answer_flags(http)
    http.add_argument(
        "--max-body-bytes",
        type=parse_size,
        default="32MiB",
        metavar="SIZE",
        help="largest request body (default: %(default)s)",
    )
    http.add_argument(
        "--max-queued-requests",
        "--max_queued_requests",
        type=_count,
        default=1024,
        metavar="N",
        help="length of the queue beyond --max-num-seqs; further requests get 429 with Retry-After "
        "(default: %(default)s)",
    )
    http.add_argument(
        "--max-stored-responses",
        "--max_stored_responses",
        type=_count,
        default=1024,
        metavar="N",
        help="answers of /v1/responses to store in memory; 0 stores none (default: %(default)s)",
    )
    http.add_argument(
        "--enable-auto-tool-choice",
        "--enable_auto_tool_choice",
        action="store_true",
        help="accepted for vLLM; always on if the format is known",
    )
    http.add_argument(
        "--strict-fields",
        "--strict_fields",
        action="store_true",
        help="refuse fields without effect; by default they are ignored and reported in `warnings`",
    )
    http.add_argument(
        "--enable-force-include-usage",
        "--enable_force_include_usage",
        action="store_true",
        help="report usage at the end of every stream, even without stream_options",
    )
    http.add_argument(
        "--trust-request-chat-template",
        "--trust_request_chat_template",
        action="store_true",
        help="accept chat_template in requests; it runs in the tokenizer's sandbox",
    )
    http.add_argument(
        "--root-path",
        "--root_path",
        type=_prefix,
        default="",
        metavar="PATH",
        help="path prefix of a proxy, such as /llm, stripped by it or not (default: none)",
    )
    http.add_argument(
        "--shutdown-timeout",
        "--shutdown_timeout",
        type=_seconds,
        default=25.0,
        metavar="S",
        help="seconds for requests in progress after SIGTERM or SIGINT; then they fail "
        "(default: %(default)s)",
    )
    add_lora_flags(http)
    _add_tls_flags(http)
    _add_cors_flags(http)
    add_chat_template_flag(http)
    add_config_flag(parser)
    EngineArgs.add_cli_args(parser)


def run(namespace: argparse.Namespace) -> int:
    """Serve until a signal.

    Raises:
        QuireError: the server cannot start.
    """
    with no_collection():
        from quire.frontend.client.commands import CORE_COMMAND, core_command
        from quire.frontend.client.core_client import ProcessClient

    args = engine_args(namespace)
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


def lend(args: EngineArgs, node: int, *, headless: bool) -> int:
    """Lend this machine's workers to node 0, until a signal.

    Raises:
        QuireError: a flag is wrong, or node 0 refuses this machine, or is not there.
    """
    from quire.core.log import setup_logging
    from quire.executor.node import lend_workers
    from quire.resolve.engine import resolve
    from quire.system.hardware import detect

    if not (headless and 0 < node < args.nnodes):
        raise ConfigError(
            f"node_rank is {node} and nnodes {args.nnodes}, "
            f"{'with' if headless else 'without'} --headless.",
            fix="Machines 1 to nnodes - 1 need --headless; node 0 answers requests, without it.",
            param="node_rank",
        )
    setup_logging()
    lend_workers(resolve(args, detect()).config, node)
    return 0


def _serve(namespace: argparse.Namespace, args: EngineArgs, core: ProcessClient) -> int:
    fallback = env.api_key()
    keys = tuple(namespace.api_key or ([fallback] if fallback else []))
    if not all(keys):
        raise ConfigError("--api-key is empty.", param="--api-key")
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

    options = ServeOptions(
        api_keys=keys,
        model_names=tuple(namespace.served_model_name or ()),
        max_body_bytes=namespace.max_body_bytes,
        max_queued_requests=namespace.max_queued_requests,
        max_stored_responses=namespace.max_stored_responses,
        chat_template=chat_template(namespace),
        strict_fields=namespace.strict_fields,
        tool_call_parser=namespace.tool_call_parser,
        reasoning_parser=namespace.reasoning_parser,
        shutdown_timeout=namespace.shutdown_timeout,
        tls=_tls(namespace),
        cors=_cors(namespace),
        root_path=namespace.root_path,
        force_include_usage=namespace.enable_force_include_usage,
        trust_request_chat_template=namespace.trust_request_chat_template,
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


def add_answer_flags(group: argparse._ArgumentGroup) -> None:
    """Add flags for the model's names and the parsers of its answers."""
    group.add_argument(
        "--served-model-name",
        "--served_model_name",
        nargs="+",
        metavar="NAME",
        help="names that clients may use as `model`; answers have the first (default: MODEL)",
    )
    group.add_argument(
        "--tool-call-parser",
        "--tool_call_parser",
        metavar="NAME",
        help="format of the model's tool calls, such as hermes or llama3_json; none leaves them as "
        "text; docs/tool-calling.md lists all (default: from the chat template)",
    )
    group.add_argument(
        "--reasoning-parser",
        "--reasoning_parser",
        metavar="NAME",
        help="format of its reasoning: qwen3, seed_oss, gemma4, mistral, granite, openai_gptoss or "
        "none (default: from the chat template)",
    )


def engine_args(namespace: argparse.Namespace) -> EngineArgs:
    """Return the engine's flags, including MODEL.

    Raises:
        ConfigError: MODEL and --model differ.
    """
    args = EngineArgs.from_cli_args(namespace)
    if namespace.model_tag is not None:
        if args.model not in ("embedded", namespace.model_tag):
            raise ConfigError(
                f"MODEL is {namespace.model_tag} and --model is {args.model}; give one of them.",
                param="--model",
            )
        args = dataclasses.replace(args, model=namespace.model_tag)
    return args


def _add_tls_flags(http: argparse._ArgumentGroup) -> None:
    files = (
        ("--ssl-certfile", "certificate, with its chain, in PEM; turns TLS on"),
        ("--ssl-keyfile", "its private key in PEM, if it is not in the same file"),
        ("--ssl-ca-certs", "authorities, in PEM, that sign clients' certificates"),
    )
    for flag, text in files:
        http.add_argument(flag, _underscored(flag), metavar="FILE", help=text)
    http.add_argument(
        "--ssl-cert-reqs",
        "--ssl_cert_reqs",
        type=int,
        choices=(0, 1, 2),
        default=0,
        help="clients' certificates: 0 not requested, 1 checked if present, 2 required "
        "(default: %(default)s)",
    )


def _add_cors_flags(http: argparse._ArgumentGroup) -> None:
    lists: tuple[tuple[str, list[str], str], ...] = (
        ("--allowed-origins", [], "origins whose pages may use the server (default: none)"),
        ("--allowed-methods", ["*"], "methods that these may use (default: all)"),
        ("--allowed-headers", ["*"], "headers that these may send (default: all)"),
    )
    for flag, default, text in lists:
        http.add_argument(
            flag,
            _underscored(flag),
            type=_strings,
            default=default,
            metavar="JSON",
            help=f"list of {text}",
        )
    http.add_argument(
        "--allow-credentials",
        "--allow_credentials",
        action="store_true",
        help="allow these origins to send the browser's cookies and credentials",
    )


def _tls(namespace: argparse.Namespace) -> Tls | None:
    """Return the TLS settings; raises `ConfigError` if a certificate or an authority is missing."""
    from quire.server.serve import Tls

    certfile: str | None = namespace.ssl_certfile
    if certfile is None:
        for flag in ("ssl_keyfile", "ssl_ca_certs", "ssl_cert_reqs"):
            if getattr(namespace, flag):
                name = "--" + flag.replace("_", "-")
                raise ConfigError(f"{name} needs a --ssl-certfile.", param=name)
        return None
    if namespace.ssl_cert_reqs and namespace.ssl_ca_certs is None:
        raise ConfigError(
            "--ssl-cert-reqs needs --ssl-ca-certs, to check clients' certificates against.",
            param="--ssl-cert-reqs",
        )
    return Tls(certfile, namespace.ssl_keyfile, namespace.ssl_ca_certs, namespace.ssl_cert_reqs)


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


def _underscored(flag: str) -> str:
    return "--" + flag[2:].replace("-", "_")


def _strings(text: str) -> list[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.MsgspecError:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON list of strings") from None


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return count


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
