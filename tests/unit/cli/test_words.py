"""vLLM's spellings of objects and switches."""

import argparse
import shlex

import pytest

from quire.cli.parser import Parser
from quire.cli.words import plain_words
from quire.core.errors import ConfigError


def parser() -> Parser:
    made = Parser()
    made.add_argument("model", nargs="?")
    made.add_argument("--draft-config", "--draft_config", "-D")
    made.add_argument("--draft-config.kind")
    made.add_argument("--cache", action="store_true", default=True)
    made.add_argument("--no-cache", action="store_false", dest="cache")
    made.add_argument("--eager", action="store_true")
    made.add_argument("--both", action=argparse.BooleanOptionalAction)
    return made


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("m --eager --cache x", "m --eager --cache x"),
        ("--cache=False --eager True m", "--no-cache --eager m"),
        ("--no-cache=false --eager=false --both=false --no-both=false", "--cache --no-both --both"),
        ("--eager=3", "--eager=3"),
        ("--draft-config.kind=x", "--draft-config.kind=x"),
        (
            "--draft-config.method ngram m --draft_config.num-x=3 -D.a.b true",
            """m '--draft-config={"method": "ngram", "num_x": 3, "a": {"b": true}}'""",
        ),
        ("--unknown.x 3", "--unknown.x 3"),
        ("--eager.x 3", "--eager.x 3"),
    ],
)
def test_words(given: str, plain: str) -> None:
    assert plain_words(parser(), shlex.split(given)) == shlex.split(plain)


def test_they_are_parsed() -> None:
    found = parser().parse(["m", "--draft-config.a", "1", "--cache=false"])
    assert (found.model, found.draft_config, found.cache) == ("m", '{"a": 1}', False)
    assert found.given == {"model", "draft_config", "cache"}


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("--draft-config.a", "--draft-config.a has no value"),
        ("--draft-config {} --draft-config.a 1", "exclude each other"),
    ],
)
def test_contradictions(given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plain_words(parser(), given.split())
