"""Old turns of a chat make room for new ones."""

import pytest

from quire.cli.chat.conversation import first_that_fits, room_for_prompt
from quire.core.errors import ContextLengthError

CHAT = ["u1", "a1", "u2", "a2", "u3"]


def dropped(room: int, turns: list[str] = CHAT) -> int:
    return first_that_fits(turns, lambda turn: turn[0] == "u", lambda kept: len(kept) <= room)


@pytest.mark.parametrize(
    ("room", "drops"), [(9, 0), (5, 0), (4, 2), (3, 2), (2, 4), (1, 4), (0, 4)]
)
def test_as_few_turns_as_possible_are_dropped(room: int, drops: int) -> None:
    assert dropped(room) == drops


def test_a_chat_that_begins_with_an_answer() -> None:
    assert dropped(2, ["a0", "u1"]) == 0
    assert dropped(1, ["a0", "u1"]) == 1
    assert dropped(0, ["a0"]) == 0


def test_a_text_that_is_not_even_tokenized_does_not_fit() -> None:
    def fits(kept: object) -> bool:
        if kept == CHAT:
            raise ContextLengthError(900, 100, counted=False)
        return True

    assert first_that_fits(CHAT, lambda turn: turn[0] == "u", fits) == 2


@pytest.mark.parametrize(
    ("context", "max_tokens", "room"),
    [(4096, None, 3840), (4096, 16, 4080), (4096, 9999, 3840), (100, None, 75), (2, None, 2)],
)
def test_an_answer_has_room(context: int, max_tokens: int | None, room: int) -> None:
    assert room_for_prompt(context, max_tokens) == room
