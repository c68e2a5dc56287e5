"""`--compilation-config`: which decode steps are recorded, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.capture import capture_sizes


def sizes(given: Any, **fields: Any) -> tuple[int, ...]:
    args = EngineArgs(ops="triton", **{"max_num_seqs": 20, "compilation_config": given, **fields})
    return capture_sizes(args, "cuda", [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (1, 2, 4, 8, 16)),
        (3, (1, 2, 4, 8, 16)),
        ({"max_cudagraph_capture_size": 8}, (1, 2, 4, 8)),
        ({"cudagraph_capture_sizes": [16, 3, 3, 24]}, (3, 16)),
        ({"cudagraph_capture_sizes": [16, 3], "max_cudagraph_capture_size": 4}, (3,)),
        ({"cudagraph_capture_sizes": []}, ()),
        ({"cudagraph_mode": "none"}, ()),
        ({"cudagraph_mode": "FULL_DECODE_ONLY"}, (1, 2, 4, 8, 16)),
    ],
)
def test_sizes(given: Any, expected: tuple[int, ...]) -> None:
    assert sizes(given) == expected


def test_the_largest_default_size_is_256() -> None:
    assert sizes(None, max_num_seqs=1000)[-2:] == (248, 256)


def test_eager_steps_are_not_recorded() -> None:
    assert sizes({"cudagraph_capture_sizes": [4]}, enforce_eager=True) == ()


def test_what_has_no_effect_is_said() -> None:
    notes: list[str] = []
    given = {"level": 3, "cudagraph_capture_sizes": [4]}
    args = EngineArgs(compilation_config=json.dumps(given))
    assert capture_sizes(args, "cpu", notes) == ()
    assert "level" in notes[0]
    assert "only Triton" in notes[1]
    notes.clear()
    assert capture_sizes(EngineArgs(), "cpu", notes) == ()
    assert not notes


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("[1]", "is wrong"),
        ({"cudagraph_mode": "SOME"}, "SOME"),
        ({"cudagraph_capture_sizes": [4, 0]}, r"\[4, 0\]"),
        ({"cudagraph_capture_sizes": 4}, "array"),
        ({"max_cudagraph_capture_size": 0}, "is 0"),
    ],
)
def test_a_wrong_field_is_named(given: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as error:
        sizes(given)
    assert error.value.param == "compilation_config"
