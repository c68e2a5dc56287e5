"""The `quire` command. It imports only the requested subcommand."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from quire import __version__
from quire.core.errors import ConfigError, QuireError
from quire.core.registry import did_you_mean
from quire.system import env
from quire.system.garbage import no_collection

if TYPE_CHECKING:
    from quire.frontend.client.core_process import CoreProcess

COMMANDS = {
    "complete": ("quire.cli.complete", "continue a text, on standard output"),
    "chat": ("quire.cli.chat.main", "talk with a model in the terminal"),
    "serve": ("quire.cli.serve", "serve OpenAI's API over HTTP"),
    "route": ("quire.cli.route", "one address for several servers"),
    "run-batch": ("quire.cli.run_batch", "answer the requests of a file"),
    "plan": ("quire.cli.plan", "check whether a model fits this machine, and predict its speed"),
    "doctor": ("quire.cli.doctor", "check this machine and suggest fixes"),
    "config": ("quire.cli.config", "print the effective settings of `serve` and their sources"),
    "simulate": ("quire.simulate.main", "predict the behaviour of a load on any hardware"),
    "explain": ("quire.cli.explain", "find out why it is slow, and what makes it faster"),
    "tune": ("quire.tune.main", "find the fastest configuration for a latency objective"),
    "tune kernels": ("quire.tune.kernels.main", "tune the kernels for this machine and a model"),
    "quantize": ("quire.quantize.main", "write a smaller copy of a model: int8, int4, fp8 or GGUF"),
    "profile": ("quire.cli.profile", "show where the time of a run goes, op by op"),
    "bug-report": ("quire.cli.bug_report", "collect data for a bug report, without secrets"),
    "bench": ("quire.bench.main", "measure speed, from kernels to serving, and quality"),
}

HELP = {"-h", "--help"}
_ELSEWHERE = {
    "run": "chat or run-batch",
    "generate": "complete",
    "start": "serve",
    "server": "serve",
    "api": "serve",
    "convert": "quantize",
    "check": "doctor",
    "info": "doctor or plan",
    "benchmark": "bench",
}
"""Other engines' command → Quire's."""

_EPILOG = """\
quire COMMAND --help lists a command's flags. Without --model, commands use the small story
model that ships with Quire."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 0, 1 for a failure, 2 for wrong flags, 130 after Ctrl-C, 141 if the reader
        of the output is gone.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(words)
    except BaseException as error:
        if _is_interrupt(error):
            return 130
        if isinstance(error, BrokenPipeError):  # `quire complete … | head`
            return 141
        text = f"{error} [{error.code}]" if isinstance(error, QuireError) else _refusal(error)
        if text is None:
            raise
        if env.log_level() == "DEBUG":
            import traceback

            traceback.print_exc()
        print(f"error: {text}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def _refusal(error: BaseException) -> str | None:
    """Return one line about what the system refused; None if it refused nothing."""
    try:
        from quire.system.refusals import refusal
    except OSError:  # not even a file of the program can be opened
        return f"{error} [system_error]"
    found = refusal(error)
    return found and f"{found} [system_error]"


def _is_interrupt(error: BaseException | None) -> bool:
    """Return whether an error is Ctrl-C, possibly wrapped by a library."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    count = 2 if " ".join(words[:2]) in COMMANDS else 1
    name, rest = " ".join(words[:count]) or "--help", words[count:]
    if name in HELP:
        print(_help())
        return 0
    if name in {"-V", "--version", "version"}:
        print(f"quire {__version__}")
        return 0
    if name not in COMMANDS:
        raise _unknown(name)
    return _run_command(name, rest)


def _unknown(word: str) -> ConfigError:
    if word.startswith("-"):
        return ConfigError(f"unknown flag {word}; flags follow the command: quire COMMAND {word} …")
    if word in _ELSEWHERE:
        return ConfigError(f"unknown command {word}; did you mean {_ELSEWHERE[word]}?")
    return ConfigError(f"unknown command {word}; {did_you_mean(word, COMMANDS)}")


def _run_command(name: str, words: Sequence[str]) -> int:
    if name != "serve" or HELP & set(words):
        return _run_with(name, words, None)
    with no_collection():
        from quire.frontend.client.core_process import CoreProcess

    core: CoreProcess | None = None

    def end(*_: object) -> NoReturn:  # without the interpreter's end: threads are loading
        if core is not None:  # else its process ends with this one
            core.abandon()
        os._exit(0)

    before = signal.signal(signal.SIGTERM, end)  # until the server handles it
    try:
        core = CoreProcess()  # it imports its modules beside this program
        return _run_with(name, words, core)
    finally:
        if core is not None:
            core.kill()
        signal.signal(signal.SIGTERM, before)


def _run_with(name: str, words: Sequence[str], core: CoreProcess | None) -> int:
    """Run a command; `core` waits for a configuration, if the command is `serve`."""
    with no_collection():
        from quire.cli.parser import Parser

        module, text = COMMANDS[name]
        command = import_module(module)
    parser = Parser(prog=f"quire {name}", description=f"{text[0].upper()}{text[1:]}.")
    command.add_arguments(parser)
    namespace = parser.parse(words)
    namespace.core = core
    status: int = command.run(namespace)
    return status


def _help() -> str:
    lines = ["usage: quire COMMAND ...", "", "LLM inference and serving.", ""]
    lines += [f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items()]
    lines += [f"  {'version':<12} print the version", "", _EPILOG]
    return "\n".join(lines)
