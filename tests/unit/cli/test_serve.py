"""From `quire serve`'s flags to what the server is told."""

import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from quire.cli import serve as command
from quire.cli.lend import lend
from quire.cli.parser import Parser
from quire.core.errors import ConfigError
from quire.frontend.client import configure
from quire.frontend.client.core_client import ProcessClient
from quire.resolve.arguments import EngineArgs
from quire.server import serve as server
from quire.server.http import listener
from quire.server.serve import ServeOptions


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_API_KEY", raising=False)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)


@pytest.fixture(autouse=True)
def _no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessClient, "begin", lambda _: None)
    monkeypatch.setattr(configure, "configure", lambda *_: None)


def told(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[EngineArgs, ServeOptions]:
    return told_on(monkeypatch, *words)[:2]


def told_on(
    monkeypatch: pytest.MonkeyPatch, *words: str
) -> tuple[EngineArgs, ServeOptions, tuple[str, int]]:
    """What the server is told, and its address."""
    calls: list[Any] = []
    monkeypatch.setattr(server, "serve", lambda *args: calls.append(args) or 0)
    monkeypatch.setattr(listener, "bind", lambda *address: nullcontext(address))
    parser = Parser()
    command.add_arguments(parser)
    namespace = parser.parse(words)
    namespace.core = None
    assert command.run(namespace) == 0
    [(args, options, address, _, _)] = calls
    return args, options, address


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told_on(monkeypatch) == (EngineArgs(), ServeOptions(), ("127.0.0.1", 8000))


def test_model_as_in_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "m")[0].model == "m"
    assert told(monkeypatch, "--model", "m")[0].model == "m"
    assert told(monkeypatch, "m", "--model", "m")[0].model == "m"


def test_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    words = ["m", "--host", "::1", "--port", "0", "--api-key", "a", "--api-key", "b"]
    words += ["--max-body-bytes", "1KiB"]
    words += ["--max_model_len", "64", "--no-enable-prefix-caching", "--kv-cache-memory-bytes"]
    words += ["2MiB", "--chat-template", str(template), "--served-model-name", "x", "y"]
    args, options, address = told_on(monkeypatch, *words)
    assert address == ("::1", 0)
    assert options == ServeOptions(
        api_keys=("a", "b"),
        model_names=("x", "y"),
        max_body_bytes=1024,
        chat_template="{{ messages }}",
    )
    assert args.max_model_len == 64
    assert args.enable_prefix_caching is False
    assert args.kv_cache_memory_bytes == 2 * 2**20


def test_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "theirs")
    assert told(monkeypatch)[1].api_keys == ("theirs",)
    monkeypatch.setenv("QUIRE_API_KEY", "ours")
    assert told(monkeypatch)[1].api_keys == ("ours",)
    assert told(monkeypatch, "--api-key", "mine")[1].api_keys == ("mine",)


def test_an_empty_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="empty"):
        told(monkeypatch, "--api-key", "")


def test_template_variables_that_only_quire_sets(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = "--default-chat-template-kwargs"
    with pytest.raises(SystemExit):
        told(monkeypatch, flag, '{"tools": 1, "messages": 2, "x": 3}')
    assert "it may not set messages, tools; leave them out" in capsys.readouterr().err
    _, options = told(monkeypatch, flag, '{"x": 3}')
    assert options.default_chat_template_kwargs == {"x": 3}


def test_who_lends_leaves_the_signals_as_they_were() -> None:
    """Seen: a later Ctrl-C in the same process ended it without a word."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ConfigError, match="node_rank"):
        lend(EngineArgs(model="embedded"), 1, headless=True)
    after = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    assert after == before
