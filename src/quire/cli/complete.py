"""`quire complete`: the text goes to standard output, everything else to standard error."""

from __future__ import annotations

import argparse
import sys

from quire.cli.session import Session, add_sampling_flags, be_quiet, given_sampling
from quire.cli.template import add_chat_template_flag, chat_template
from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, add_engine_flags

INTERRUPTED = 130

_HOW = "Write it after the command, or pipe it in."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the prompt, the sampling flags and the engine's flags to `parser`."""
    parser.add_argument(
        "prompt", nargs="?", metavar="PROMPT", help="the text; standard input if absent or -"
    )
    text = "send the prompt as a user's message, through the model's chat template"
    Flags(parser)("--chat", False, text)
    add_chat_template_flag(Flags(parser))
    add_sampling_flags(parser)
    add_engine_flags(parser)


def run(namespace: argparse.Namespace) -> int:
    """Complete one prompt.

    Raises:
        QuireError: there is no prompt, or the model cannot answer.
    """
    text = _prompt(namespace.prompt)
    template = chat_template(namespace)
    given_sampling(namespace)  # report wrong flags before loading
    be_quiet(namespace)
    with Session(EngineArgs.from_cli_args(namespace)) as session:
        tokenizer = session.engine.tokenizer
        if namespace.chat:
            from quire.text.chat import chat_to_token_ids

            messages = [{"role": "user", "content": text}]
            token_ids = chat_to_token_ids(tokenizer, messages, chat_template=template)
        else:
            token_ids = tokenizer.encode(text)
        _, speed = session.stream(token_ids, session.params(namespace, len(token_ids)))
    print(flush=True)
    print(speed, file=sys.stderr)
    return 0 if speed.finish_reason else INTERRUPTED


def _prompt(argument: str | None) -> str:
    """Return the argument, or standard input without its last line break."""
    text = argument
    if argument in (None, "-"):
        if argument is None and sys.stdin.isatty():
            raise ConfigError("There is no prompt.", fix=_HOW, param="PROMPT")
        text = sys.stdin.read().removesuffix("\n")
    if not text:
        raise ConfigError("The prompt is empty.", fix=_HOW, param="PROMPT")
    return text
