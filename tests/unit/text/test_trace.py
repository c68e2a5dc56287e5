"""Traces in JSON Lines and CSV, our own and published ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.errors import ConfigError
from quire.text.trace import TraceLine, read_lines


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_both_kinds_of_file_say_the_same(tmp_path: Path) -> None:
    expected = [
        TraceLine(arrival=0.0, input_len=9, output_len=2),
        TraceLine(arrival=1.5, input_len=7, output_len=3, prefix="a", prefix_len=4),
    ]
    one = write(
        tmp_path,
        "t.jsonl",
        '{"arrival": 6.5, "input_len": 7, "output_len": 3, "prefix": "a", "prefix_len": 4}',
        "",
        '{"arrival": 5, "input_len": 9, "output_len": 2}',
    )
    other = write(
        *(tmp_path, "t.csv", "arrival,input_len,output_len,prefix,prefix_len"),
        *("6.5,7,3,a,4", "5,9,2,,"),
    )
    assert read_lines(one) == read_lines(other) == expected


@pytest.mark.parametrize(
    "lines",
    [
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens",
            "2023-11-16 18:15:46.6805900,374,44",
            "2023-11-16 18:15:50.9951690,396,109",
        ),
        (
            "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
            "5,ChatGPT,374,44,418,Conversation log",
            "9.314579,GPT-4,396,109,505,Conversation log",
        ),
    ],
)
def test_published_traces(lines: tuple[str, ...], tmp_path: Path) -> None:
    first, second = read_lines(write(tmp_path, "t.csv", *lines))
    assert (first.arrival, first.input_len, first.output_len) == (0.0, 374, 44)
    assert (second.length, second.output_len) == (396, 109)
    assert second.arrival == pytest.approx(4.314579, abs=1e-5)


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (("arrival,input_len", "1,2"), "no column output_len"),
        (("arrival,input_len,output_len", "1,2,3", "x,2,3"), "Line 3 .* is wrong"),
        (("arrival,input_len,output_len", "1,2,0"), "Line 2 .* at least one token"),
        (("arrival,input_len,output_len", "1,two,3"), "Line 2"),
        (("arrival,input_len,output_len", ",2,3"), "Line 2"),
        (("arrival,input_len,output_len",), "no requests"),
    ],
)
def test_what_is_wrong_with_a_table(lines: tuple[str, ...], what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=what):
        read_lines(write(tmp_path, "t.csv", *lines))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        read_lines(tmp_path / "t.jsonl")


def test_without_arrivals_the_order_is_the_files(tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    lines = ['{"input_len": 9, "output_len": 2}', '{"input_len": 7, "output_len": 3}']
    file.write_text("\n".join(lines))
    assert [(line.arrival, line.length) for line in read_lines(file)] == [(None, 9), (None, 7)]
    table = tmp_path / "t.csv"
    table.write_text("input_len,output_len\n9,2\n7,3\n")
    assert read_lines(table) == read_lines(file)
    file.write_text("\n".join([*lines, '{"arrival": 1, "input_len": 7, "output_len": 3}']))
    with pytest.raises(ConfigError, match="have arrival, others none"):
        read_lines(file)
