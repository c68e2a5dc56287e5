"""Data sets: seeded, of the lengths and with the beginnings that were asked for."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from quire.bench.serving.datasets import DATASETS, Ask, complete
from quire.bench.serving.load import make_load
from quire.core.errors import ConfigError
from tests.unit.bench.parsed import bench_args


def flags(*argv: str) -> argparse.Namespace:
    return bench_args("serve", *argv)


def asks(*argv: str, seed: tuple[int, int] = (0, 1)) -> list[Ask]:
    args = complete(flags(*argv))
    return DATASETS[args.dataset_name].make(args, list(seed))


def write(path: Path, *lines: Any) -> str:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """A file for each data set that needs one."""
    said = [("human", "Why?"), ("gpt", "x" * 40)]
    prompt = {"input_len": 9, "prefix": "a", "prefix_len": 6}
    turns = [{"from": who, "value": what} for who, what in said]
    chats: list[dict[str, Any]] = [{"conversations": turns}] * 3
    chats += [{"conversations": turns[1:]}, {"conversations": []}, {}]
    return {
        "sharegpt": write(tmp_path / "chats.json", chats),
        "custom": write(tmp_path / "c.jsonl", *({"prompt": f"Question {i}"} for i in range(5))),
        "trace": write(
            tmp_path / "t.jsonl",
            *({"arrival": 3 + i, "output_len": 1 + i, **prompt} for i in range(4)),
        ),
    }


@pytest.mark.parametrize("name", DATASETS)
def test_the_same_seed_asks_the_same(name: str, files: dict[str, str]) -> None:
    argv = ("--dataset-name", name)
    argv += ("--dataset-path", files[name]) if name in files else ()
    one = asks(*argv)
    assert one == asks(*argv)
    assert one != asks(*argv, seed=(0, 2)) or name == "sharegpt", "whose prompts are all the same"
    turns = sum(1 + len(ask.follow_ups) for ask in one)
    assert turns == (4 if name == "trace" else 32)
    assert all(ask.prompt and ask.output_len >= 1 for ask in one)
    texts = DATASETS[name].text
    assert all(isinstance(ask.prompt, str) == texts for ask in one)


def test_lengths_lie_around_the_mean() -> None:
    found = asks("--input-len", "40", "--output-len", "10", "--random-range-ratio", "0.5")
    lengths = [len(ask.prompt) for ask in found]
    assert min(lengths) >= 20
    assert max(lengths) <= 60
    assert len(set(lengths)) > 8
    assert {5 <= ask.output_len <= 15 for ask in found} == {True}
    assert {len(ask.prompt) for ask in asks("--input-len", "40")} == {40}


@pytest.mark.parametrize("prompts", ["tokens", "text"])
def test_each_prefix_as_often_as_the_others(prompts: str) -> None:
    found = asks(
        *("--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "4"),
        *("--prefix-len", "6", "--input-len", "3", "--num-prompts", "20", "--prompts", prompts),
    )
    words = [a.prompt.split() if isinstance(a.prompt, str) else a.prompt for a in found]
    assert {len(each) for each in words} == {9}
    heads = [tuple(each[:6]) for each in words]
    assert sorted(heads.count(head) for head in set(heads)) == [5, 5, 5, 5]
    assert [a.repeats for a in found] == [head in heads[:i] for i, head in enumerate(heads)]


def test_conversations_share_out_the_requests() -> None:
    found = asks("--dataset-name", "multi-turn", "--num-prompts", "7", "--num-turns", "3")
    assert [len(ask.follow_ups) for ask in found] == [2, 2, 0]
    said = [text for ask in found for text in (ask.prompt, *ask.follow_ups)]
    assert len(set(said)) == 7
    assert all(isinstance(text, str) and len(text.split()) == 128 for text in said)


def test_sonnets_begin_alike() -> None:
    found = asks("--dataset-name", "sonnet", "--num-prompts", "5")
    texts = [str(ask.prompt) for ask in found]
    assert len({text[:800] for text in texts}) == 1
    assert len(set(texts)) == 5
    assert all(2200 <= len(text) < 2300 for text in texts)
    assert [ask.repeats for ask in found] == [False, True, True, True, True]
    with pytest.raises(ConfigError, match="is not between"):
        asks("--dataset-name", "sonnet", "--input-len", "100")


def test_word_problems_are_filled_in() -> None:
    found = asks("--dataset-name", "gsm8k", "--num-prompts", "100")
    texts = [str(ask.prompt) for ask in found]
    assert len(set(texts)) == 100
    assert not any("{" in text for text in texts)
    assert all(text.startswith("Question: ") and "?" in text for text in texts)


def test_files_bring_prompts_and_lengths(files: dict[str, str]) -> None:
    chats = asks("--dataset-name", "sharegpt", "--dataset-path", files["sharegpt"])
    assert {(ask.prompt, ask.output_len) for ask in chats} == {("Why?", 10)}
    own = asks("--dataset-name", "custom", "--dataset-path", files["custom"], "--num-prompts", "7")
    assert {ask.output_len for ask in own} == {64}
    assert sorted({str(ask.prompt) for ask in own[:5]}) == [f"Question {i}" for i in range(5)]
    assert [ask.repeats for ask in own] == [False] * 5 + [True] * 2
    argv = ("--dataset-name", "custom", "--dataset-path", files["custom"])
    assert {ask.output_len for ask in asks(*argv, "--custom-output-len", "9")} == {9}


def test_a_trace_has_its_own_moments(files: dict[str, str]) -> None:
    argv = ("--dataset-name", "trace", "--dataset-path", files["trace"])
    found = asks(*argv)
    assert [ask.arrival for ask in found] == [0.0, 1.0, 2.0, 3.0]
    assert [ask.output_len for ask in found] == [1, 2, 3, 4]
    assert [ask.repeats for ask in found] == [False, True, True, True]
    assert {len(ask.prompt) for ask in found} == {9}
    assert len({tuple(ask.prompt[:6]) for ask in found}) == 1
    assert len({tuple(ask.prompt) for ask in found}) == 4
    load = make_load(flags(*argv, "--num-prompts", "2"), "m", 0)
    assert [r.arrival for r in load.requests] == [0.0, 1.0]
    assert load.fixed
    assert not load.closed_loop
    with pytest.raises(ConfigError, match="its own arrival times"):
        make_load(flags(*argv, "--request-rate", "3"), "m", 0)


def test_tokens_of_a_trace_are_sent_as_they_are(tmp_path: Path) -> None:
    line = {"arrival": 0, "prompt_token_ids": [5, 6, 7], "output_len": 1}
    argv = ("--dataset-name", "trace", "--dataset-path", write(tmp_path / "t.jsonl", line))
    assert [ask.prompt for ask in asks(*argv)] == [[5, 6, 7]]
    with pytest.raises(ConfigError, match="the flags ask for texts"):
        asks(*argv, "--endpoint", "chat")


@pytest.mark.parametrize(
    ("argv", "what"),
    [
        (("--num-prefixes", "3"), "--num-prefixes has no effect with --dataset-name random"),
        (
            ("--dataset-name", "gsm8k", "--input-len", "3"),
            "This data set has --num-prompts, --output-len",
        ),
        (("--dataset-name", "custom"), "needs --dataset-path"),
        (("--dataset-name", "sonnet", "--prompts", "tokens"), "which needs texts"),
        (("--endpoint", "chat", "--prompts", "tokens"), "which needs texts"),
        (("--range-ratio", "1.0"), "less than 1"),
        (("--dataset-name", "custom", "--dataset-path", "missing"), "cannot be read"),
    ],
)
def test_flags_that_do_not_go_together(argv: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        asks(*argv)


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("custom", '{"prompt": "a"}\n{"text": "b"}', "Line 2 .*not an object with a text"),
        ("custom", '{"prompt": "a", "output_tokens": 0}', "Line 1 .*at least 1"),
        ("custom", "nothing", "Line 1"),
        ("custom", "\n", "no prompts"),
        ("sharegpt", "{}", "not a list"),
        ("sharegpt", "[{}]", "no prompts"),
        ("sharegpt", "[", "is not JSON"),
    ],
)
def test_what_is_wrong_with_a_file(name: str, text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_text(text)
    with pytest.raises(ConfigError, match=what):
        asks("--dataset-name", name, "--dataset-path", str(tmp_path / "f"))
