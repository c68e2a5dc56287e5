"""A field that parameters do not have: the error says what to write in its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.core.beam_search import BeamSearchParams
from quire.core.errors import InvalidRequestError
from quire.core.named_fields import NamedFields
from quire.core.pooling_params import PoolingParams
from quire.core.sampling_params import RepetitionDetectionParams, SamplingParams

KINDS: list[NamedFields] = [SamplingParams, PoolingParams, BeamSearchParams]


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"best_of": 4}, "Use n, and choose"),
        ({"guided_decoding": {"json": {}}}, r"StructuredOutputsParams"),
        ({"logits_processors": [print]}, "logit_bias"),
        ({"max_new_tokens": 8}, "Use max_tokens"),
        ({"use_beam_search": True}, "LLM.beam_search with BeamSearchParams"),
        ({"do_sample": False}, "temperature=0 for greedy"),
        ({"temprature": 0.5}, r"Did you mean temperature\?"),
        ({"xyzzy": 1}, "It has n, temperature"),
    ],
)
def test_a_missing_field_names_its_replacement(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told) as caught:
        SamplingParams(**fields)
    [name] = fields
    assert caught.value.param == name
    assert f"SamplingParams has no field {name!r}" in str(caught.value)


def test_values_that_ask_for_nothing_are_taken() -> None:
    neutral: dict[str, Any] = {
        "best_of": 1, "use_beam_search": False, "length_penalty": 1.0, "guided_decoding": None,
        "logits_processors": [],
    }  # fmt: skip
    assert SamplingParams(seed=3, **neutral) == SamplingParams(seed=3)
    given: dict[str, Any] = {"temperature": 0.0}
    params = BeamSearchParams(beam_width=2, max_tokens=3, **given)
    assert params == BeamSearchParams(beam_width=2, max_tokens=3)
    with pytest.raises(InvalidRequestError, match="takes the likeliest tokens"):
        BeamSearchParams(beam_width=2, max_tokens=3, temperature=0.5)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="pooling_task"):
        PoolingParams(task="embed")  # type: ignore[call-arg]
    with pytest.raises(InvalidRequestError, match="best_of"):
        SamplingParams(best_of=True)  # type: ignore[call-arg]


def test_what_is_elsewhere_is_not_here() -> None:
    for kind in KINDS:
        assert not set(kind.elsewhere) & set(kind.__struct_fields__), kind


def test_decoding_is_as_before() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"])
    encoded = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(encoded, type=SamplingParams) == params
    assert params.replace(seed=1).seed == 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"max_pattern_size": 3}, r"is \{'max_pattern_size': 3\}; it must be RepetitionDetection"),
        (5, "is 5; it must be RepetitionDetectionParams"),
        (RepetitionDetectionParams("a"), "max_pattern_size is wrong: Expected `int`, got `str`"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_type_of_repetition_detection(value: Any, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        SamplingParams(repetition_detection=value)
