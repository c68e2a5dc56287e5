"""Suggestions for mistyped names."""

import pytest

from quire.core.registry import closest, did_you_mean

FLAGS = ["--model", "--model-len", "--help", "--port", "--host", "--max-model-len", "--batch-size"]


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("--mdoel", ["--model"]),
        ("--prot", ["--port"]),
        ("--max_modellen", ["--max-model-len"]),
        ("--max-model", ["--max-model-len"]),
        ("--batchsize", ["--batch-size"]),
        ("--MODEL", ["--model"]),
        ("--zzz", []),
        ("--m", []),
        ("", []),
    ],
)
def test_the_closest_names(word: str, names: list[str]) -> None:
    assert closest(word, FLAGS) == names


def test_never_what_was_typed() -> None:
    assert closest("--model", FLAGS) == ["--model-len"]
    assert closest("--host", ["--host", "--host"]) == []


def test_names_that_are_as_close_are_all_told() -> None:
    assert closest("bat", ["bar", "baz", "bad", "bag"]) == ["bad", "bag", "bar"]
    assert did_you_mean("bat", ["bar", "cat"]) == "did you mean bar or cat?"
    assert did_you_mean("x", ["b", "a"]) == "known: a, b"
