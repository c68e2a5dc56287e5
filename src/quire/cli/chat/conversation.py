"""The messages of a chat, and its requests."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypedDict, TypeVar

import msgspec

from quire.cli.session import Session, Speed
from quire.core.errors import ContextLengthError, InvalidRequestError


class Message(TypedDict):
    """One turn, as in OpenAI's API."""

    role: str
    content: str


class Question(NamedTuple):
    """A message to answer.

    Attributes:
        turns: those before it.
    """

    text: str
    turns: list[Message]


class Conversation:
    """The instructions and turns so far.

    Attributes:
        system: the instructions, "" for none.
        turns: messages of the user and the assistant, in turns.
        sampling: the flags of `cli.session.add_sampling_flags`.
    """

    def __init__(
        self, session: Session, sampling: argparse.Namespace, template: str | None = None
    ) -> None:
        self.sampling = sampling
        self.system: str = sampling.system or ""
        self.turns: list[Message] = []
        self._session = session
        self._template = template

    @property
    def messages(self) -> list[Message]:
        """Return the instructions, if any, and all turns."""
        return [*self._opening, *self.turns]

    @property
    def last(self) -> Question | None:
        for index in range(len(self.turns) - 1, -1, -1):
            if self.turns[index]["role"] == "user":
                return Question(self.turns[index]["content"], self.turns[:index])
        return None

    def ask(
        self, question: Question, write: Callable[[str], None], tell: Callable[[str], None]
    ) -> Speed:
        """Answer a question, writing with `write`; add both to the turns.

        The oldest turns are dropped if they leave no room; `tell` says so.

        Raises:
            InvalidRequestError: the question was refused; the conversation is unchanged.
        """
        turns: list[Message] = [*question.turns, {"role": "user", "content": question.text}]
        dropped = first_that_fits(turns, lambda turn: turn["role"] == "user", self._fits)
        if dropped:
            turns = turns[dropped:]
            tell(f"The context is full: {dropped} of the oldest messages were left out.")
        token_ids = self._token_ids(turns)
        params = self._session.params(self.sampling, len(token_ids), most=None)
        answer, speed = self._session.stream(token_ids, params, write)
        self.turns = [*turns, {"role": "assistant", "content": answer}]
        return speed

    def save(self, path: Path) -> None:
        """Write the conversation as JSON; overwrite only a conversation.

        Raises:
            InvalidRequestError: the file holds something else, or cannot be written.
        """
        if path.exists():
            _read(path)
        try:
            path.write_text(json.dumps(self.messages, ensure_ascii=False, indent=2) + "\n")
        except OSError as error:
            raise _cannot("written", path, error) from None

    def load(self, path: Path) -> None:
        """Continue a saved conversation.

        Raises:
            InvalidRequestError: the file cannot be read, or holds no conversation.
        """
        messages = _read(path)
        opening = messages[:1] if messages and messages[0]["role"] == "system" else []
        self.system = opening[0]["content"] if opening else ""
        self.turns = messages[len(opening) :]

    @property
    def _opening(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def _fits(self, turns: Sequence[Message]) -> bool:
        context = self._session.engine.max_total_tokens
        return len(self._token_ids(turns)) <= room_for_prompt(context, self.sampling.max_tokens)

    def _token_ids(self, turns: Sequence[Message]) -> list[int]:
        from quire.text.chat import chat_to_token_ids

        return chat_to_token_ids(
            self._session.engine.tokenizer,
            [dict(message) for message in (*self._opening, *turns)],
            chat_template=self._template,
        )


def _read(path: Path) -> list[Message]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Message])
    except OSError as error:
        raise _cannot("read", path, error) from None
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise InvalidRequestError(
            f"{path} is no saved conversation.", fix="Name another file."
        ) from None


def _cannot(what: str, path: Path, error: OSError) -> InvalidRequestError:
    return InvalidRequestError(f"{path} cannot be {what}: {error.strerror}.")


T = TypeVar("T")
MAX_RESERVE = 256
"""Most tokens reserved for the answer."""


def room_for_prompt(context: int, max_tokens: int | None) -> int:
    """Return how many tokens a prompt may have, so that room for an answer remains.

    Args:
        context: tokens of prompt and answer together.
        max_tokens: tokens of the answer; None means all that fit.
    """
    wanted = MAX_RESERVE if max_tokens is None else max_tokens
    return max(1, context - min(wanted, MAX_RESERVE, context // 4))


def first_that_fits(
    turns: Sequence[T], is_question: Callable[[T], bool], fits: Callable[[Sequence[T]], bool]
) -> int:
    """Return how many of the oldest turns to drop: as few as let the others fit.

    The remaining turns begin with a question. The last question stays even if it does not fit.
    """
    starts = [index for index, turn in enumerate(turns) if is_question(turn)]
    if not starts or _holds(fits, turns):
        return 0
    first, last = 0, len(starts) - 1
    while first < last:
        middle = (first + last) // 2
        if _holds(fits, turns[starts[middle] :]):
            last = middle
        else:
            first = middle + 1
    return starts[first]


def _holds(fits: Callable[[Sequence[T]], bool], turns: Sequence[T]) -> bool:
    try:
        return fits(turns)
    except ContextLengthError:
        return False
