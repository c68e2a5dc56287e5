"""`quire chat`: its commands, its input and its output, over a model that spells the alphabet."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quire.cli import session
from quire.cli.chat import main as chat
from quire.cli.chat.reader import Reader
from quire.cli.chat.wrap import Wrapped
from quire.cli.session import Session
from tests.unit.cli.test_session import flags, start_echo

Talk = Callable[..., list[tuple[str, int]]]


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Talk]:
    """Runs a chat over the lines of a pipe; gives each prompt's last user message and length."""
    asked: list[tuple[str, int]] = []
    stream = Session.stream

    def watched(self: Session, prompt: list[int], params: object, write: object) -> object:
        text = self.engine.tokenizer.decode(prompt)
        asked.append((text, params.temperature))  # type: ignore[attr-defined]
        return stream(self, prompt, params, write)  # type: ignore[arg-type]

    def run(text: str, *words: str) -> list[tuple[str, int]]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert chat.run(flags(chat, "--max-tokens", "3", "--temperature", "0", *words)) == 0
        return asked

    monkeypatch.setattr(session, "start_engine", start_echo)
    monkeypatch.setattr(Session, "stream", watched)
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "INFO")
    return run


def test_it_remembers_until_it_is_cleared(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [text for text, _ in talk("a\n\na\n/clear\na\n/reset\na\n/help\n/exit\na\n")]
    once = "user: a\nassistant:"
    assert prompts == [once, f"{once} ;<=\n{once}", once, once]
    printed = capsys.readouterr()
    assert printed.out == ";<=\n" * 4
    assert "/clear" in printed.err


def test_the_oldest_turns_make_room(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = [text for text, _ in talk(("a" * 60 + "\n") * 6, "--system", "Be kind.")]
    assert len(prompts) == 6
    assert all(
        len(text) <= 253 and text.startswith("system: Be kind.\nuser: a") for text in prompts
    )
    assert "2 of the oldest messages were left out" in capsys.readouterr().err


def test_retry_asks_the_last_message_again(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = talk("/retry\na\nb\n/retry\n/retry\n/clear\n/retry\n")
    assert len(prompts) == 4
    assert prompts[1] == prompts[2] == prompts[3]
    assert capsys.readouterr().err.count("no message to answer again") == 2


def test_system_and_temperature(talk: Talk, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "a\n/system\n/system Be short.\n/temp 0.5\n/clear\na\n/system -\n/clear\na"
    prompts = talk(lines, "--system", "Be kind.")
    assert [text.split("user:")[0] for text, _ in prompts] == [
        "system: Be kind.\n", "system: Be short.\n", ""
    ]  # fmt: skip
    assert [temperature for _, temperature in prompts] == [0.0, 0.5, 0.5]
    assert "Instructions: Be kind." in capsys.readouterr().err


def test_a_conversation_is_saved_and_loaded(
    talk: Talk, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, other = tmp_path / "talk.json", tmp_path / "other.txt"
    other.write_text("mine")
    lines = [
        *("/system Be kind.", "a", f"/save {file}", f"/save {file}", f"/save {other}"),
        *("/system -", "/clear", f"/load {other}", "/load", f"/load {file}", "b"),
    ]
    prompts = talk("\n".join(lines))
    assert prompts[-1][0].startswith("system: Be kind.\nuser: a\nassistant: ;<=\nuser: b\n")
    assert other.read_text() == "mine"
    saved = [turn["role"] for turn in json.loads(file.read_text())]
    assert saved == ["system", "user", "assistant"]
    told = capsys.readouterr().err
    assert told.count("is no saved conversation") == 2
    assert "/load needs the name of a file" in told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/savee x", "did you mean /save?"),
        ("/nonsense", "unknown command /nonsense; /help lists them."),
        ("/", "unknown command /; /help"),
        ("/temp hot", "/temp hot: it must be a number from 0 to 100"),
        ("/temp nan", "/temp nan"),
        ("/temp -1", "/temp -1"),
        ("/load /no/such/file", "/no/such/file cannot be read: No such file"),
        ("/save /no/such/file", "/no/such/file cannot be written: No such file"),
        ("/save ~nobody-here/x", "~nobody-here"),
        ("a" * 600, "error: "),
    ],
)
def test_what_cannot_be_done_is_told_and_the_chat_goes_on(
    line: str, told: str, talk: Talk, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = talk(f"{line}\na\n")
    assert told in capsys.readouterr().err
    assert prompts[-1][0] == "user: a\nassistant:"


def test_a_path_is_no_command(talk: Talk) -> None:
    assert talk("/usr/bin: what is it?")[0][0].startswith("user: /usr/bin: what is it?")


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("a\nb\n", ["a", "b"]),
        ("  \n\n a \n", ["a"]),
        ('"""\na\n\n b\n"""\nc\n', ["a\n\n b", "c"]),
        ('"""a"""\n', ["a"]),
        ('"""a\nb"""\n', ["a\nb"]),
        ('""""""\nb\n', ["b"]),
        ('"""a\nb', ["a\nb"]),
        ("", []),
    ],
)
def test_messages_from_a_pipe(
    text: str, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert list(iter(Reader(False).read, None)) == messages


def test_ctrl_c_gives_up_the_line_but_ends_a_pipe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = iter(['"""a', KeyboardInterrupt(), "b", EOFError()])

    def type_line(*_: str) -> str:
        match next(typed):
            case str() as line:
                return line
            case error:
                raise error

    monkeypatch.setattr("builtins.input", type_line)
    assert list(iter(Reader(True).read, None)) == ["b"]
    assert "/exit" in capsys.readouterr().err

    class Interrupted(io.StringIO):
        def readline(self, *_: object) -> str:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        Reader(False).read()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("one two three", "one two \nthree"),
        ("one\ntwo three", "one\ntwo three"),
        ("one two three four", "one two \nthree four"),
        ("    one two", "    one \ntwo"),
        ("abcdefghijklmno pq", "abcdefghijklmno pq"),
        ("日本語日本語日", "日本語日本\n語日"),
        ("\x1b[2Jhi\x07", "\ufffd[2Jhi\ufffd"),
        ("a\tb", "a    b"),
    ],
)
def test_words_are_wrapped_however_they_come(text: str, shown: str) -> None:
    for size in (1, 3, len(text)):
        out = io.StringIO()
        wrapped = Wrapped(out, 10)
        for start in range(0, len(text), size):
            wrapped.write(text[start : start + size])
        wrapped.flush()
        assert out.getvalue() == shown


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with Wrapped.to_stdout(False) as out:
        out.write("one two three\x1b " * 20)
    assert capsys.readouterr().out == "one two three\x1b " * 20


def test_quiet_unless_asked(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    from quire.system import env

    monkeypatch.delenv("QUIRE_LOG_LEVEL")
    talk("", "-v")
    assert env.log_level() == "INFO"
    talk("")
    assert env.log_level() == "WARNING"
