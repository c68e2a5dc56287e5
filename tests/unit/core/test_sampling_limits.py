"""Every list of a request has a limit: at it, it is accepted; beyond it, the error names it."""

from __future__ import annotations

from typing import Any

import pytest

from quire.core import sampling_params as limits
from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import SamplingParams

WORD = limits.MAX_BAD_WORD_CHARACTERS // limits.MAX_BAD_WORDS
LONGEST = limits.MAX_STOP_STRING_LENGTH


def strings(count: int, length: int) -> list[str]:
    return [f"{number:0{length}}" for number in range(count)]


AT_LIMIT: dict[str, dict[str, Any]] = {
    "stop strings": {"stop": strings(limits.MAX_STOP_STRINGS, LONGEST)},
    "stop_token_ids": {"stop_token_ids": [*range(limits.MAX_STOP_TOKEN_IDS)]},
    "logprob_token_ids": {"logprob_token_ids": [0] * limits.MAX_LOGPROB_TOKEN_IDS, "n": 20},
    "logit_bias": {"logit_bias": dict.fromkeys(range(limits.MAX_LOGIT_BIAS), 1.0)},
    "allowed_token_ids": {"allowed_token_ids": [0] * limits.MAX_ALLOWED_TOKEN_IDS},
    "bad_words": {"bad_words": strings(limits.MAX_BAD_WORDS, WORD)},
    "bad_words characters": {"bad_words": ["a" * limits.MAX_BAD_WORD_CHARACTERS]},
    "bad_words for each of n": {
        "bad_words": ["a"] * (limits.MAX_REPEATED_BAD_WORDS // 128),
        "n": 128,
    },
}
BEYOND: dict[str, dict[str, Any]] = {
    "stop strings": {"stop": strings(limits.MAX_STOP_STRINGS + 1, 4)},
    "stop_token_ids": {"stop_token_ids": [0] * (limits.MAX_STOP_TOKEN_IDS + 1)},
    "logprob_token_ids": {"logprob_token_ids": [0] * (limits.MAX_LOGPROB_TOKEN_IDS + 1)},
    "logprob_token_ids times n": {
        "logprob_token_ids": [0] * limits.MAX_LOGPROB_TOKEN_IDS,
        "n": 21,
    },
    "logit_bias": {"logit_bias": dict.fromkeys(range(limits.MAX_LOGIT_BIAS + 1), 1.0)},
    "allowed_token_ids": {"allowed_token_ids": [0] * (limits.MAX_ALLOWED_TOKEN_IDS + 1)},
    "bad_words": {"bad_words": strings(limits.MAX_BAD_WORDS + 1, 4)},
    "bad_words characters": {"bad_words": ["a" * limits.MAX_BAD_WORD_CHARACTERS, "a"]},
    "bad_words for each of n": {
        "bad_words": ["a"] * (limits.MAX_REPEATED_BAD_WORDS // 128 + 1),
        "n": 128,
    },
}


@pytest.mark.parametrize("name", AT_LIMIT)
def test_a_list_at_its_limit_is_accepted(name: str) -> None:
    SamplingParams(**AT_LIMIT[name])


@pytest.mark.parametrize("name", BEYOND)
def test_a_list_beyond_its_limit_is_refused(name: str) -> None:
    field = name.partition(" ")[0]
    with pytest.raises(InvalidRequestError, match=rf"{field} has \d+ .*at most \d+") as caught:
        SamplingParams(**BEYOND[name])
    assert caught.value.param == field
