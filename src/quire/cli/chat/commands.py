"""The effects of lines that start with a slash."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

from quire.cli.chat.conversation import Conversation, Question
from quire.core.errors import InvalidRequestError
from quire.core.registry import closest

Tell = Callable[[str], None]

HELP = '''\
/system [TEXT]  show or set the instructions; /system - removes them
/temp [X]       show or set the temperature; 0 always takes the likeliest token
/retry          answer the last message again
/clear          forget the conversation
/save FILE      write the conversation to a JSON file
/load FILE      go on with a saved conversation
/help           this list
/exit           leave; so does Ctrl-D
"""             begins and ends a message of several lines
Ctrl-C          stop the answer'''

_WORD = re.compile(r"/([a-z]*)(?:\s+(.*))?", re.DOTALL)
_MAX_TEMPERATURE = 100.0


class Leave(Exception):  # noqa: N818 - not an error
    """The user wants to end the chat."""


def obey(text: str, conversation: Conversation, tell: Tell) -> Question | None:
    """Run a command; return the question to answer, if any.

    A text such as "/usr/bin: what is it?" is no command but a question.

    Raises:
        Leave: the chat is to end.
        InvalidRequestError: the command cannot be carried out.
    """
    match = _WORD.fullmatch(text)
    if match is None:
        return Question(text, conversation.turns)
    word, argument = match[1], (match[2] or "").strip()
    if word in ("exit", "quit", "bye"):
        raise Leave
    if word == "retry":
        if (question := conversation.last) is None:
            raise InvalidRequestError("There is no message to answer again.")
        return question
    if word not in _COMMANDS:
        close = " or ".join(f"/{name}" for name in closest(word, [*_COMMANDS, "exit", "retry"]))
        hint = f"did you mean {close}?" if close else "/help lists them."
        raise InvalidRequestError(f"unknown command /{word};", fix=hint)
    tell(_COMMANDS[word](conversation, argument))
    return None


def _system(conversation: Conversation, text: str) -> str:
    if text:
        conversation.system = "" if text == "-" else text
    return f"Instructions: {conversation.system or 'none'}"


def _temp(conversation: Conversation, text: str) -> str:
    if text:
        conversation.sampling.temperature = _temperature(text)
    value = conversation.sampling.temperature
    return f"Temperature: {'as the model says' if value is None else value}"


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= _MAX_TEMPERATURE:
        raise InvalidRequestError(
            f"/temp {text}: it must be a number from 0 to {_MAX_TEMPERATURE:.0f}."
        )
    return value


def _clear(conversation: Conversation, _: str) -> str:
    conversation.turns = []
    return "The conversation is forgotten."


def _save(conversation: Conversation, name: str) -> str:
    path = _path("/save", name)
    conversation.save(path)
    return f"{len(conversation.messages)} messages in {path}"


def _load(conversation: Conversation, name: str) -> str:
    path = _path("/load", name)
    conversation.load(path)
    return f"{len(conversation.messages)} messages from {path}"


def _path(command: str, name: str) -> Path:
    if not name:
        raise InvalidRequestError(f"{command} needs the name of a file.")
    try:
        return Path(name).expanduser()
    except RuntimeError as error:  # an unknown ~user
        raise InvalidRequestError(f"{command} {name}: {error}") from None


_COMMANDS: dict[str, Callable[[Conversation, str], str]] = {
    "system": _system,
    "temp": _temp,
    "clear": _clear,
    "reset": _clear,
    "save": _save,
    "load": _load,
    "help": lambda *_: HELP,
}
"""Name → the command, which returns the text to print. /reset is the older name of /clear."""
