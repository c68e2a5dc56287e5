"""Flags whose type, metavar and default text follow from their default."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from quire.resolve.flags import Flags


def _parsed(words: list[str], *declared: Any, **options: Any) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    Flags(parser)(*declared, **options)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("default", "words", "value"),
    [
        (3, [], 3),
        (3, ["--some-flag", "5"], 5),
        (1.5, ["--some_flag", "2"], 2.0),
        (Path("a"), ["--some-flag", "b"], Path("b")),
        ("a", ["--some-flag", "b"], "b"),
        ([1, 2], [], [1, 2]),
        ([1, 2], ["--some-flag", "3", "4", "5"], [3, 4, 5]),
        (False, [], False),
        (False, ["--some_flag"], True),
        (False, ["--some-flag", "--no-some-flag"], False),
        (True, ["--no-some-flag"], False),
    ],
)
def test_a_flag_takes_values_of_its_defaults_type(
    default: Any, words: list[str], value: Any
) -> None:
    found = _parsed(words, "--some-flag", default).some_flag
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("default", [3, [3]])
def test_a_count_is_at_least_one(default: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _parsed(["--some-flag", "0"], "--some-flag", default)
    assert "0 is not at least 1" in capsys.readouterr().err


def test_the_help_shows_the_default_unless_the_text_does() -> None:
    parser = argparse.ArgumentParser()
    flags = Flags(parser)
    flags("-a --one", 3, "apples")
    flags("--two", [1, 2])
    flags("--three", None, "pears (default: all)", type=Path)
    flags(
        "--four",
        False,
        "plums",
    )
    text = " ".join(parser.format_help().split())
    assert "--one N apples (default: 3)" in text
    assert "(default: 1 2)" in text
    assert "--three FILE pears (default: all)" in text
    assert "--four plums" in text


def test_an_alias_sets_the_flag_and_is_not_shown() -> None:
    parser = argparse.ArgumentParser()
    Flags(parser)("--one", 3, "apples", "--theirs --other")
    assert parser.parse_args([]).one == 3
    assert parser.parse_args(["--theirs", "4"]).one == 4
    assert parser.parse_args(["--other", "5"]).one == 5
    assert "theirs" not in parser.format_help()
