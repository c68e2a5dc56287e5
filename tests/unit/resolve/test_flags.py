"""Every field of `EngineArgs` has its flag, with its help, and both spellings."""

from __future__ import annotations

import argparse
import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.resolve.arguments import EngineArgs
from quire.resolve.field_flags import field_docs, parse_size
from quire.resolve.flags import engine_flags_from

FIELDS = dataclasses.fields(EngineArgs)


def parse(*argv: str) -> EngineArgs:
    parser = argparse.ArgumentParser(exit_on_error=False)
    EngineArgs.add_cli_args(parser)
    return EngineArgs.from_cli_args(parser.parse_args(argv))


def test_no_flags_are_the_defaults() -> None:
    assert parse() == EngineArgs()


def test_every_field_has_help() -> None:
    assert set(field_docs(EngineArgs)) == {field.name for field in FIELDS}
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    shown = " ".join(parser.format_help().split())
    for field in FIELDS:
        assert "--" + field.name.replace("_", "-") in shown
    assert "Tokens per KV-cache block: 8, 16 or 32. (default: 16)" in shown
    assert "--max_model_len" not in shown


@pytest.mark.parametrize("spelling", ["--max-model-len", "--max_model_len"])
def test_dashes_and_underscores(spelling: str) -> None:
    assert parse(spelling, "32").max_model_len == 32
    assert parse(f"{spelling}=32").max_model_len == 32


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--enable-prefix-caching", True),
        ("--enable_prefix_caching", True),
        ("--no-enable-prefix-caching", False),
        ("--no_enable_prefix_caching", False),
    ],
)
def test_switches(flag: str, value: bool) -> None:
    assert parse(flag).enable_prefix_caching is value


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("auto", -1), ("8K", 8192), ("8k", 8000), ("1M", 2**20), ("1.5m", 1_500_000)],
)
def test_lengths(text: str, tokens: int) -> None:
    assert parse("--max-model-len", text).max_model_len == tokens
    if text != "auto":
        assert parse("--max-num-batched-tokens", text).max_num_batched_tokens == tokens


def test_what_is_no_number_of_tokens_is_shown_how_to_write_it() -> None:
    with pytest.raises(argparse.ArgumentError, match="'1e3' is not a number of tokens; write"):
        parse("--max-model-len", "1e3")


def test_literals_are_choices() -> None:
    assert parse("--dtype", "bfloat16").dtype == "bfloat16"
    with pytest.raises(argparse.ArgumentError, match="float31"):
        parse("--dtype", "float31")


def test_other_defaults() -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    EngineArgs.add_cli_args(parser, {"max_num_seqs": 7})
    assert EngineArgs.from_cli_args(parser.parse_args([])) == EngineArgs(max_num_seqs=7)


@given(
    st.builds(
        EngineArgs,
        model=st.sampled_from(["embedded", "a b/c", "-x"]),
        dtype=st.sampled_from(["auto", "float16"]),
        max_model_len=st.none() | st.integers(1, 10**6),
        gpu_memory_utilization=st.floats(0.01, 1.0),
        kv_cache_memory_bytes=st.none() | st.integers(1, 2**40),
        enable_prefix_caching=st.booleans(),
    )
)
def test_flags_round_trip(args: EngineArgs) -> None:
    assert parse(*engine_flags_from(args)) == args


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("4GiB", 4 * 2**30),
        ("4G", 4 * 2**30),
        ("4GB", 4 * 10**9),
        ("4g", 4 * 10**9),
        ("1.5 KiB", 1536),
        ("2kB", 2000),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse("--kv-cache-memory-bytes", text).kv_cache_memory_bytes == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "4 apples", "1.5", "0.3B", "1e9", "4gIb"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_size(text)


def test_field_docs_need_a_string_right_below() -> None:
    class Example:
        documented: int = 1
        """One
        line."""
        bare: int = 2

    assert field_docs(Example) == {"documented": "One line."}


def test_each_flags_help_begins_with_a_short_sentence() -> None:
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    for action in parser._actions:
        if action.help and action.help is not argparse.SUPPRESS:
            first = re.split(r"[.;:]\s", action.help % vars(action))[0]
            assert len(first.split()) <= 15, f"{action.option_strings[0]}: {first}"
