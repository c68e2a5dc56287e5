"""The messages of a chat, and its requests."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict, TypeVar

from quire.cli.session import Session, Speed
from quire.core.errors import ContextLengthError


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
    def last(self) -> Question | None:
        """Return the user's last question; None if there is none."""
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

    def _fits(self, turns: Sequence[Message]) -> bool:
        context = self._session.engine.max_total_tokens
        return len(self._token_ids(turns)) <= room_for_prompt(context, self.sampling.max_tokens)

    def _token_ids(self, turns: Sequence[Message]) -> list[int]:
        from quire.text.chat import chat_to_token_ids

        opening = [{"role": "system", "content": self.system}] if self.system else []
        return chat_to_token_ids(
            self._session.engine.tokenizer,
            [*opening, *map(dict, turns)],
            chat_template=self._template,
        )


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
