"""Streaming in the terminal, over a model that spells the alphabet."""

import argparse
import io
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from quire.cli import complete, session
from quire.cli.parser import Parser
from quire.cli.session import Session, Speed
from quire.core.errors import ConfigError, InvalidRequestError, QuireError
from quire.frontend.async_llm import AsyncLLM
from quire.resolve.arguments import EngineArgs
from quire.text.tokenizers.dummy import DummyTokenizer
from tests.unit.engine.echo import VOCAB_SIZE
from tests.unit.engine.fakes import resolved
from tests.unit.server.fake_engine import LoopClient

SECONDS = 0.002


async def start_echo(args: EngineArgs) -> AsyncLLM:
    tokenizer = DummyTokenizer(VOCAB_SIZE)
    engine = AsyncLLM(resolved(), tokenizer, args, partial(LoopClient, SECONDS))
    await engine.start_core()
    return engine


@pytest.fixture(autouse=True)
def _echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "start_engine", start_echo)
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "INFO")  # for the commands would set it


@pytest.fixture
def running() -> Iterator[Session]:
    with Session(EngineArgs()) as running:
        yield running


def flags(command: object, *words: str) -> argparse.Namespace:
    parser = Parser()
    command.add_arguments(parser)  # type: ignore[attr-defined]
    return parser.parse(words)


def test_streams_to_stdout(running: Session, capsys: pytest.CaptureFixture[str]) -> None:
    params = running.params(flags(complete, "--max-tokens", "5", "--temperature", "0"), 1)
    text, speed = running.stream("a", params)
    assert text == "bcdef"
    assert capsys.readouterr().out == "bcdef"
    assert speed.tokens == 5
    assert speed.finish_reason == "length"
    assert 0 < speed.first < speed.last


def test_default_length_fits_the_context(running: Session) -> None:
    namespace = flags(complete)
    assert running.params(namespace, 1).max_tokens == 255
    assert running.params(namespace, 200).max_tokens == 56
    assert running.params(namespace, 999).max_tokens == 1


def test_ctrl_c_ends_the_generation_only(running: Session) -> None:
    params = running.params(flags(complete, "--ignore-eos", "--temperature", "0"), 1)
    pieces: list[str] = []

    def press(piece: str) -> None:
        if not pieces:
            signal.raise_signal(signal.SIGINT)
        pieces.append(piece)

    text, speed = running.stream("{", params, press)
    assert speed.finish_reason is None
    assert len(text) < 255
    assert running.stream("a", params)[0].startswith("bcd")
    assert running.engine.num_unfinished == 0


def test_errors_come_through(running: Session) -> None:
    params = running.params(flags(complete), 1)
    with pytest.raises(InvalidRequestError):
        running.stream("", params)
    with pytest.raises(QuireError, match="The engine failed"):
        running.stream([7], params)


def test_speed_reads_well() -> None:
    assert str(Speed(11, 0.5, 1.5, "stop")) == (
        "11 tokens, 10.0 tok/s, first token after 0.50 s, ended by stop"
    )
    assert str(Speed()) == "0 tokens, ended by interrupt"


def test_complete(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--max-tokens", "3", "--temperature", "0"]
    assert complete.run(flags(complete, "a", *words)) == 0
    printed = capsys.readouterr()
    assert printed.out == "bcd\n"
    assert printed.err.endswith("ended by length\n")
    pipe("xa\n", monkeypatch)
    assert complete.run(flags(complete, "-", *words)) == 0
    assert capsys.readouterr().out == "bcd\n"
    assert complete.run(flags(complete, "--chat", "a", *words)) == 0
    assert capsys.readouterr().out == ";<=\n"  # the template ends with a colon


def test_complete_needs_a_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe("\n", monkeypatch)
    with pytest.raises(ConfigError, match="empty"):
        complete.run(flags(complete))


def pipe(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
