"""The command's front: what it prints, what it returns, what it imports."""

import argparse
import contextlib
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import quire
from quire import __version__
from quire.cli.main import COMMANDS, main
from quire.cli.parser import Parser
from quire.frontend.client.core_process import CoreProcess


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_the_commands(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert all(f"\n  {name} " in printed for name in COMMANDS)


@pytest.mark.parametrize("word", ["version", "--version", "-V"])
def test_version(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out == f"quire {__version__}\n"


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sevre"]) == 2
    said = capsys.readouterr().err
    assert said == "error: unknown command sevre; did you mean serve? [config_error]\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "model"], "unknown command run; did you mean chat or run-batch?"),
        (["bnech"], "did you mean bench?"),
        (["--port", "80", "serve"], "unknown flag --port; flags follow the command"),
        (["zzz"], "known: bench, bug-report, chat"),
        (["bench"], "Name a benchmark: latency, throughput"),
    ],
)
def test_other_words(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_commands_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"quire {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_flag_has_a_help(name: str) -> None:
    waiting = [parser_of(name)]
    for parser in waiting:
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            elif action.help != argparse.SUPPRESS:
                assert action.help, action
                assert not action.help.startswith("("), action


@pytest.mark.parametrize(
    "name",
    ["serve", "plan", "config", "run-batch", "chat", "explain", "profile", "simulate", "tune"],
)
def test_the_model_needs_no_flag(name: str) -> None:
    files = ["-i", "a", "-o", "b"] if name == "run-batch" else []
    slo = ["--slo", "ttft=1"] if name == "tune" else []
    assert parser_of(name).parse(["qwen3-0.6b", *files, *slo]).model == "qwen3-0.6b"


def parser_of(name: str) -> Parser:
    parser = Parser(prog=f"quire {name}")
    import_module(COMMANDS[name][0]).add_arguments(parser)
    return parser


@pytest.mark.parametrize(
    ("words", "begun"),
    [
        (["serve", "--nonsense"], 1),
        (["serve", "a", "--model", "b"], 1),
        (["serve", "--node-rank", "1"], 1),
        (["serve", "--help"], 0),
        (["help", "serve"], 0),
        (["plan", "--nonsense"], 0),
    ],
)
def test_a_core_that_nobody_configures_ends(
    words: list[str], begun: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sleeper(CoreProcess):
        def __init__(self) -> None:
            super().__init__((sys.executable, "-c", "import time; time.sleep(60)"))
            cores.append(self)

    cores: list[Sleeper] = []
    monkeypatch.setattr("quire.frontend.client.core_process.CoreProcess", Sleeper)
    with contextlib.suppress(SystemExit):
        assert main(words) != 0
    assert len(cores) == begun
    assert all(c.popen.returncode == -signal.SIGKILL and not c.directory.exists() for c in cores)


@pytest.mark.parametrize("name", ["serve", "plan", "quantize"])
def test_help_tells_of_activations_of_8_bits(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([name, "--help"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "round activations to 8 bits" in printed
    assert "int8_w8a16" in printed


def test_help_for_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["help", "tune", "kernels"])
    assert caught.value.code == 0
    assert "quire tune kernels" in capsys.readouterr().out
    assert main(["help", "sevre"]) == 2


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "here", "--model", "there"]) == 2
    assert capsys.readouterr().err == (
        "error: MODEL is here and --model is there; give one of them. [config_error]\n"
    )


def test_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("QUIRE_LOG_LEVEL", "DEBUG")
    assert main(["serve", "here", "--model", "there"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["serve", "--help"], ["nonsense"]])
def test_answers_without_the_heavy_parts(words: list[str]) -> None:
    """What makes start-up slow is imported only by the commands that need it."""
    heavy = {"torch", "numpy", "h11", "starlette", "tokenizers", "jinja2"}
    program = (
        "import sys\nfrom quire.cli.main import main\n"
        f"try: main({words!r})\nexcept SystemExit: pass\n"
        f"assert not sorted({heavy!r} & sys.modules.keys())"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_nothing_is_imported_before_signals_are_handled() -> None:
    """Ctrl-C prints Python's traceback until `main` runs: the module must cost next to nothing."""
    program = (
        "import os, sys; before = {*sys.modules}; sys.path.append(sys.argv[1])\n"
        "import quire.__main__; print(*sorted({*sys.modules} - before))"
    )
    source = str(Path(quire.__file__).parents[1])
    # Without `site`, which imports `os`, and the finders of editable installations much more.
    command = [sys.executable, "-S", "-c", program, source]
    done = subprocess.run(command, check=True, capture_output=True)
    assert done.stdout.decode().split() == ["__future__", "quire", "quire.__main__"]
