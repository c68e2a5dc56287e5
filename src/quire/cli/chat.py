"""`quire chat`: a conversation in the terminal, or one message a line from a pipe."""

from __future__ import annotations

import argparse
import sys

from quire.cli.session import Session, add_sampling_flags, given_sampling
from quire.cli.template import add_chat_template_flag, chat_template
from quire.core.errors import InvalidRequestError
from quire.core.flags import add_config_flag, add_engine_flags, engine_args_from

HELP = """\
/reset  forget the conversation
/help   this list
/exit   leave; so does Ctrl-D
Ctrl-C  stop the answer"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sampling flags and the engine's flags to `parser`."""
    parser.add_argument("--system", metavar="TEXT", help="instructions before the conversation")
    add_chat_template_flag(parser)
    add_sampling_flags(parser)
    add_config_flag(parser)
    add_engine_flags(parser)


def run(namespace: argparse.Namespace) -> int:
    """Talk until the end of the input.

    Raises:
        QuireError: what keeps the model from starting or from going on.
    """
    template = chat_template(namespace)
    given_sampling(namespace)  # what is wrong with the flags is told before anything is loaded
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        import readline  # noqa: F401 -- gives input() its line editing and history
    with Session(engine_args_from(namespace)) as session:
        if interactive:
            print("/help lists the commands.", file=sys.stderr)
        _Conversation(session, namespace, template).run(interactive)
    return 0


class _Conversation:
    """The messages so far, and what each line of input does."""

    def __init__(
        self, session: Session, namespace: argparse.Namespace, template: str | None
    ) -> None:
        self._session = session
        self._namespace = namespace
        self._template = template
        system = namespace.system
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)

    def run(self, interactive: bool) -> None:
        while (line := _read(interactive)) is not None:
            match line.strip():
                case "":
                    continue
                case "/exit":
                    return
                case "/help":
                    print(HELP, file=sys.stderr)
                case "/reset":
                    self._messages = list(self._opening)
                case command if command.startswith("/"):
                    print(f"unknown command {command}; /help lists them", file=sys.stderr)
                case text:
                    self._answer(text)

    def _answer(self, text: str) -> None:
        from quire.text.chat import chat_to_token_ids

        messages = [*self._messages, {"role": "user", "content": text}]
        try:
            tokenizer = self._session.engine.tokenizer
            token_ids = chat_to_token_ids(tokenizer, messages, chat_template=self._template)
            params = self._session.params(self._namespace, len(token_ids))
            answer, speed = self._session.stream(token_ids, params)
        except InvalidRequestError as error:  # too long, say: the conversation stays as it was
            print(f"error: {error} /reset starts anew.", file=sys.stderr)
            return
        print(flush=True)
        print(speed, file=sys.stderr)
        self._messages = [*messages, {"role": "assistant", "content": answer}]


def _read(interactive: bool) -> str | None:
    """The next line; None at the end of the input, "" for a line given up by Ctrl-C."""
    try:
        if interactive:
            return input("> ")
        return sys.stdin.readline() or None
    except EOFError:
        print(file=sys.stderr)
        return None
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return "" if interactive else None
