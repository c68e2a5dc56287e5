"""One-line errors with a suggestion."""

import pytest

from quire.cli.parser import Parser
from quire.resolve.arguments import EngineArgs


def message(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    parser = Parser(prog="quire try")
    parser.add_argument("text", nargs="?")
    parser.add_argument("--size", type=int)
    sub = Parser(prog="quire sub")
    sub.add_argument("--width", type=int)
    EngineArgs.add_cli_args(parser)
    with pytest.raises(SystemExit) as caught:
        parser.parse(words)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sise", "3"], "unknown flag --sise; did you mean --size"),
        (["--siz=3"], "unknown flag --siz; did you mean --size"),
        (["--max-model", "3"], "--max-model-len"),
        (["--no-enable-prefix-cachin"], "did you mean --no-enable-prefix-caching"),
        (["--qqq"], "see quire try --help"),
        (["a", "b"], "unexpected argument 'b'"),
        (["--size", "x"], "argument --size: invalid int value: 'x'"),
        (["--dtype", "f"], "invalid choice: 'f' (choose from"),
        (["--dtype", "bfloat61"], "invalid choice: 'bfloat61'; did you mean bfloat16?"),
        (["--max-model-len", "many"], "--max-model-len: 'many' is not a number of tokens"),
    ],
)
def test_messages(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert text in message(words, capsys)


def test_subcommands_flags_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="quire try")
    sub = parser.add_subparsers().add_parser("latency")
    sub.add_argument("--batch-size")
    with pytest.raises(SystemExit):
        parser.parse(["latency", "--batchsize", "3"])
    assert "did you mean --batch-size?" in capsys.readouterr().err


def test_flags_of_other_commands_and_of_vllm_are_not_suggested(
    capsys: pytest.CaptureFixture[str],
) -> None:
    parser = Parser(prog="quire try")
    subs = parser.add_subparsers()
    subs.add_parser("serve").add_argument("--plot-dir")
    subs.add_parser("latency")
    with pytest.raises(SystemExit):
        parser.parse(["latency", "--plot-dir", "x"])
    said = capsys.readouterr().err
    assert said == "error: unknown flag --plot-dir; see quire try latency --help [config_error]\n"
    said = message(["--trust-remote-cod"], capsys)
    assert "did you mean" not in said
    assert "did you mean --model?" in message(["--modle", "x"], capsys)


def test_one_spelling_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="quire try")
    parser.add_argument("--max-size", "--max_size", type=int, help="the most")
    assert parser.parse(["--max_size", "3"]).max_size == 3
    assert "--max-size MAX_SIZE  the most" in parser.format_help()
    assert "--max_size" not in parser.format_help()
    with pytest.raises(SystemExit):
        parser.parse(["--max_size", "x"])
    assert "argument --max-size: invalid int value" in capsys.readouterr().err
