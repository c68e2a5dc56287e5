"""`quire chat`: its flags, and the loop from input to answer."""

from __future__ import annotations

import argparse
import sys

from quire.cli.chat.commands import Leave, obey
from quire.cli.chat.conversation import Conversation, Question
from quire.cli.chat.reader import Reader
from quire.cli.chat.wrap import Wrapped
from quire.cli.session import Session, add_sampling_flags, be_quiet, given_sampling
from quire.cli.template import add_chat_template_flag, chat_template
from quire.core.errors import InvalidRequestError
from quire.resolve.arguments import EngineArgs
from quire.resolve.flags import Flags, add_engine_flags


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags and the engine's flags to `parser`."""
    parser.add_argument("--system", metavar="TEXT", help="instructions before the conversation")
    add_chat_template_flag(Flags(parser))
    add_sampling_flags(parser)
    add_engine_flags(parser, positional=True)


def run(namespace: argparse.Namespace) -> int:
    """Talk until the end of the input.

    Raises:
        QuireError: the model cannot start or continue.
    """
    template = chat_template(namespace)
    given_sampling(namespace)  # report wrong flags before anything is loaded
    be_quiet(namespace)
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    with Session(EngineArgs.from_cli_args(namespace)) as session:
        if interactive:
            length = session.engine.max_model_len
            _tell(f"{namespace.model}, context {length:,} tokens. /help lists the commands.")
        _talk(Conversation(session, namespace, template), Reader(interactive))
    return 0


def _talk(conversation: Conversation, reader: Reader) -> None:
    while (text := reader.read()) is not None:
        try:
            question = obey(text, conversation, _tell)
            if question is not None:
                _answer(conversation, question, wrapped=reader.interactive)
        except Leave:
            return
        except InvalidRequestError as error:  # the conversation stays as it was
            _tell(f"error: {error}")


def _answer(conversation: Conversation, question: Question, *, wrapped: bool) -> None:
    with Wrapped.to_stdout(wrapped) as out:
        speed = conversation.ask(question, out.write, _tell)
    print(flush=True)
    _tell(str(speed))


def _tell(text: str) -> None:
    print(text, file=sys.stderr)
