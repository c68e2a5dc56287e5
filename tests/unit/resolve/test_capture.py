"""`--compilation-config`: which decode steps are recorded, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quire.core.errors import ConfigError
from quire.resolve.arguments import EngineArgs
from quire.resolve.capture import capture_sizes, compile_backend


def sizes(given: Any, **fields: Any) -> tuple[int, ...]:
    args = EngineArgs(ops="triton", **{"max_num_seqs": 20, "compilation_config": given, **fields})
    return capture_sizes(args, "cuda", [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, (1, 2, 4, 8, 16, 20)),
        (3, (1, 2, 4, 8, 16, 20)),
        ({"max_cudagraph_capture_size": 8}, (1, 2, 4, 8)),
        ({"cudagraph_capture_sizes": [16, 3, 3, 24]}, (3, 16)),
        ({"cudagraph_capture_sizes": [16, 3], "max_cudagraph_capture_size": 4}, (3,)),
        ({"cudagraph_capture_sizes": []}, ()),
        ({"cudagraph_mode": "none"}, ()),
        ({"cudagraph_mode": "FULL_DECODE_ONLY"}, (1, 2, 4, 8, 16, 20)),
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
    ("given", "fields", "backend", "note"),
    [
        (None, {}, None, ""),
        ({"mode": 0}, {}, None, ""),
        ({"mode": "none"}, {}, None, ""),
        ({"mode": 1}, {}, "inductor", "waits for torch.compile"),
        ({"mode": "stock_torch_compile", "backend": "eager"}, {}, "eager", "what else is in"),
        ({"mode": 3}, {}, None, "no effect of mode 3"),
        ({"mode": 1}, {"enforce_eager": True}, None, "--enforce-eager is set"),
        ({"mode": 1}, {"ops": "triton"}, None, "only --ops reference"),
        ({"mode": 1}, {"ops": "auto"}, None, "only --ops reference"),
    ],
)
def test_the_first_mode_compiles_prompts(
    given: Any, fields: dict[str, Any], backend: str | None, note: str
) -> None:
    notes: list[str] = []
    text = None if given is None else json.dumps(given)
    args = EngineArgs(**{"ops": "reference", "compilation_config": text, **fields})
    assert compile_backend(args, notes) == backend
    assert note in " ".join(notes)
    assert bool(notes) == bool(note)


def test_other_backends_are_refused() -> None:
    text = '{"mode": 1, "backend": "openxla"}'
    with pytest.raises(ConfigError, match="backend is 'openxla'; known: aot_eager"):
        compile_backend(EngineArgs(ops="reference", compilation_config=text), [])


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("[1]", "is wrong"),
        ({"cudagraph_mode": "SOME"}, "SOME"),
        ({"cudagraph_capture_sizes": [4, 0]}, r"\[4, 0\]"),
        ({"cudagraph_capture_sizes": 4}, "array"),
        ({"max_cudagraph_capture_size": 0}, "is 0"),
        ({"mode": 4}, "Invalid enum value 4"),
    ],
)
def test_a_wrong_field_is_named(given: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as error:
        sizes(given)
    assert error.value.param == "compilation_config"
