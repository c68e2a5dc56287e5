"""The data sets of `quire bench serve` (`--dataset-name`).

A data set is a function of the flags and a seed. Prompts are token ids or texts. The length of a
text is its number of words for `random`, `prefix_repetition` and `multi-turn` (common words, each
about one token), and a quarter of its characters elsewhere. The row has the server's own count as
`prompt_tokens`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from quire.bench.serving.workload import lengths, text_prompts, token_prompts
from quire.core.errors import ConfigError
from quire.system.records import dataclass
from quire.text.files import read_text
from quire.text.trace import read_lines

_TEXTS = Path(__file__).with_name("texts")
_NAMES = (
    *("Ada", "Bela", "Chidi", "Dunja", "Emre", "Farah"),
    *("Goran", "Hana", "Imani", "Jonas", "Keiko", "Lucia"),
)
CHARACTERS = 4
"""Approximate characters per token of English."""

Prompt = list[int] | str
"""Token ids, or a text."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, or one conversation.

    Attributes:
        output_len: maximum tokens of an answer.
        arrival: seconds after the start, if the data set defines it.
        follow_ups: the user's later turns, one after each answer.
        repeats: its prompt shares a prefix with an earlier one.
    """

    prompt: Prompt
    output_len: int
    arrival: float | None = None
    follow_ups: tuple[str, ...] = ()
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set and its flags.

    Attributes:
        make: parsed flags and seed → requests.
        defaults: flags of this data set → their defaults; None if the data decide.
        needs: required flags.
        text: prompts are texts, never token ids.
        fixed: prompts are the same in every repetition, so a server may have them cached.
    """

    make: Callable[[argparse.Namespace, list[int]], list[Ask]]
    defaults: Mapping[str, Any]
    needs: tuple[str, ...] = ()
    text: bool = False
    fixed: bool = False


FLAGS = (
    *("num_prompts", "input_len", "output_len", "range_ratio", "num_prefixes", "prefix_len"),
    *("num_turns", "dataset_path", "prompts"),
)
"""Flags of some data sets only; None if unset."""


def complete(args: argparse.Namespace) -> argparse.Namespace:
    """Return `args` with the data set's defaults for unset flags.

    Raises:
        ConfigError: a flag has no effect on this data set, or is required.
    """
    name: str = args.dataset_name
    dataset = DATASETS[name]
    texts = dataset.text or args.endpoint == "chat"
    values: dict[str, Any] = {**dict.fromkeys(dataset.needs), **dataset.defaults}
    values["prompts"] = "text" if texts else "tokens"
    for flag in FLAGS:
        given = getattr(args, flag)
        spelled = "--" + flag.replace("_", "-")
        if flag == "prompts" and given == "tokens" and texts:
            what = f"--dataset-name {name}" if dataset.text else "--endpoint chat"
            raise ConfigError(
                f"--prompts tokens does not work with {what}, which needs texts.", param="--prompts"
            )
        if given is not None and flag not in values:
            raise ConfigError(
                f"{spelled} has no effect with --dataset-name {name}.",
                fix=f"Leave it out. This data set has {_spell(values)}.",
                param=spelled,
            )
        if given is None and flag in dataset.needs:
            raise ConfigError(f"--dataset-name {name} needs {spelled}.", param=spelled)
        if given is not None:
            values[flag] = given
    return argparse.Namespace(**{**vars(args), **values})


def _spell(flags: Mapping[str, Any]) -> str:
    return ", ".join("--" + flag.replace("_", "-") for flag in flags)


def _random(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    count = args.num_prompts
    inputs = lengths(args.input_len, args.range_ratio, count, [*seed, 1])
    outputs = lengths(args.output_len, args.range_ratio, count, [*seed, 2])
    prompts = _fillers(args, count, max(inputs), seed)
    return [
        Ask(_cut(prompt, length), output)
        for prompt, length, output in zip(prompts, inputs, outputs, strict=True)
    ]


def _prefix_repetition(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    """Return requests with all prefixes equally often, in random order."""
    prefixes = _fillers(args, args.num_prefixes, args.prefix_len, [*seed, 3])
    picks = np.random.default_rng([*seed, 4]).permutation(args.num_prompts) % args.num_prefixes
    seen: set[int] = set()
    asks = []
    for ask, pick in zip(_random(args, seed), picks.tolist(), strict=True):
        prompt = _join(prefixes[pick], ask.prompt)
        asks.append(replace(ask, prompt=prompt, repeats=pick in seen))
        seen.add(pick)
    return asks


def _multi_turn(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    """Return `num_prompts` requests in conversations of `num_turns`; the last may be shorter."""
    asks = _random(args, seed)
    return [
        replace(
            first, follow_ups=tuple(str(ask.prompt) for ask in asks[i + 1 : i + args.num_turns])
        )
        for i, first in list(enumerate(asks))[:: args.num_turns]
    ]


def _sonnet(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    """Return prompts with lines of verse: a shared beginning, then different lines."""
    lines = (_TEXTS / "verse.txt").read_text(encoding="utf-8").splitlines()
    head = "Choose the lines below that go well together, and write a poem with them.\n"
    room = args.prefix_len * CHARACTERS - len(head)
    if args.prefix_len > args.input_len or room < 0:
        raise ConfigError(
            f"--prefix-len {args.prefix_len} is not between {-(-len(head) // CHARACTERS)} (the "
            f"question) and --input-len {args.input_len}.",
            param="--prefix-len",
        )
    rng = np.random.default_rng(seed)

    def verse(characters: int) -> str:
        text = ""
        while len(text) < characters:
            text += lines[int(rng.integers(len(lines)))].strip() + "\n"
        return text

    prefix = head + verse(room)
    return [
        Ask(
            prefix + verse(args.input_len * CHARACTERS - len(prefix)),
            args.output_len,
            repeats=i > 0,
        )
        for i in range(args.num_prompts)
    ]


def _gsm8k(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    """Return word problems of a few sentences with random names and numbers."""
    problems = (_TEXTS / "word_problems.txt").read_text(encoding="utf-8").splitlines()
    rng = np.random.default_rng(seed)
    asks = []
    for index in _picks(len(problems), args.num_prompts, seed):
        numbers = [int(rng.integers(low, 4 * low)) for low in (3, 12, 2, 60)]
        values = dict(zip("abcd", numbers, strict=True))
        name = _NAMES[int(rng.integers(len(_NAMES)))]
        question = problems[index].format(name=name, **values)
        asks.append(Ask(f"Question: {question}\nAnswer, step by step:", args.output_len))
    return asks


def _sharegpt(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    """Return the first question of each conversation, with its answer's length as output length."""
    try:
        found = json.loads(_read(args.dataset_path))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{args.dataset_path} is not JSON: {error}.") from None
    if not isinstance(found, list):
        raise ConfigError(f"{args.dataset_path} is not a list of conversations.")
    pairs = [pair for entry in found if (pair := _exchange(entry)) is not None]
    return _sample(args, [Ask(q, _tokens(a)) for q, a in pairs], seed)


def _exchange(entry: Any) -> tuple[str, str] | None:
    """Return the first question and answer of a conversation; None if it has another shape."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    match turns:
        case [
            {"from": "human" | "user", "value": str(question)},
            {"from": "gpt" | "assistant" | "chatgpt", "value": str(answer)},
            *_,
        ] if question.strip() and answer.strip():
            return question, answer
    return None


def _custom(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    """Return requests from lines of JSON with `prompt` and optionally `output_tokens`."""
    return _sample(args, list(_custom_lines(args.dataset_path, default=64)), seed)


def _custom_lines(path: Path, default: int) -> Iterator[Ask]:
    for number, line in enumerate(_read(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            match json.loads(line):
                case {"prompt": str(prompt), **rest} if prompt:
                    output = rest.get("output_tokens", default)
                case _:
                    raise ValueError("it is not an object with a text `prompt`")
            if not isinstance(output, int) or output < 1:
                raise ValueError("output_tokens is not an integer of at least 1")
        except ValueError as error:
            raise ConfigError(f"Line {number} of {path} is wrong: {error}.") from None
        yield Ask(prompt, output)


def _trace(args: argparse.Namespace, seed: list[int]) -> list[Ask]:
    """Return the first `num_prompts` requests of a trace, or all, with its arrival times."""
    lines = read_lines(args.dataset_path)[: args.num_prompts or None]
    own = _fillers(args, len(lines), max(line.length for line in lines), seed)
    seen: set[int | str] = set()
    asks = []
    for line, filler in zip(lines, own, strict=True):
        prompt = filler
        repeats = False
        if line.prompt_token_ids is not None:
            if args.prompts == "text":
                raise ConfigError(
                    f"The trace {args.dataset_path} has prompt_token_ids, but the flags ask for "
                    "texts.",
                    fix="Leave out --prompts text and --endpoint chat.",
                )
            prompt = line.prompt_token_ids
        elif line.prefix is not None:
            named = [*seed, 5, zlib.crc32(str(line.prefix).encode())]
            [shared] = _fillers(args, 1, max(1, line.shared), named)
            prompt = _join(_cut(shared, line.shared), _cut(filler, line.length - line.shared))
            repeats = line.prefix in seen
            seen.add(line.prefix)
        asks.append(
            Ask(_cut(prompt, line.length), line.output_len, arrival=line.arrival, repeats=repeats)
        )
    return asks


def _fillers(args: argparse.Namespace, count: int, length: int, seed: list[int]) -> list[Prompt]:
    """Return `count` random prompts of `length` token ids or words."""
    if args.prompts == "text":
        return [*text_prompts(count, length, seed)]
    return [*token_prompts(count, length, args.vocab_size, seed)]


def _cut(prompt: Prompt, length: int) -> Prompt:
    """Return the first `length` token ids or words."""
    if isinstance(prompt, str):
        return " ".join(prompt.split(" ")[:length])
    return prompt[:length]


def _join(head: Prompt, tail: Prompt) -> Prompt:
    if isinstance(head, str):
        return f"{head} {tail}" if head and tail else f"{head}{tail}"
    assert not isinstance(tail, str)
    return head + tail


def _sample(args: argparse.Namespace, asks: list[Ask], seed: list[int]) -> list[Ask]:
    """Return `num_prompts` requests of a file in random order; each once before any repeats."""
    if not asks:
        raise ConfigError(f"{args.dataset_path} has no prompts.", param="--dataset-path")
    if args.output_len is not None:
        asks = [replace(ask, output_len=args.output_len) for ask in asks]
    if len(asks) < args.num_prompts and seed[-1] == 0:
        print(
            f"{args.dataset_path.name} has only {len(asks)} prompts: some of {args.num_prompts} "
            "repeat and may be cached.",
            file=sys.stderr,
        )
    return [
        replace(asks[index], repeats=i >= len(asks))
        for i, index in enumerate(_picks(len(asks), args.num_prompts, seed))
    ]


def _picks(among: int, count: int, seed: list[int]) -> list[int]:
    """Return `count` numbers below `among`: consecutive permutations of all of them."""
    rng = np.random.default_rng(seed)
    rounds = [rng.permutation(among) for _ in range(math.ceil(count / among))]
    picked: list[int] = np.concatenate(rounds)[:count].tolist()
    return picked


def _tokens(text: str) -> int:
    return max(1, round(len(text) / CHARACTERS))


def _read(path: Path) -> str:
    return read_text(path, str(path), param="--dataset-path")


_RANDOM = {"num_prompts": 32, "input_len": 128, "output_len": 64, "range_ratio": 0.0}
_FILE: dict[str, Any] = {"num_prompts": 32, "output_len": None}
_PATH = ("dataset_path",)
DATASETS: dict[str, Dataset] = {
    "random": Dataset(_random, _RANDOM),
    "prefix_repetition": Dataset(
        _prefix_repetition, {**_RANDOM, "num_prefixes": 4, "prefix_len": 512}
    ),
    "multi-turn": Dataset(_multi_turn, {**_RANDOM, "num_turns": 4}, text=True),
    "sonnet": Dataset(
        _sonnet,
        {"num_prompts": 32, "input_len": 550, "output_len": 150, "prefix_len": 200},
        text=True,
    ),
    "gsm8k": Dataset(_gsm8k, {"num_prompts": 32, "output_len": 128}, text=True),
    "sharegpt": Dataset(_sharegpt, _FILE, _PATH, text=True, fixed=True),
    "custom": Dataset(_custom, _FILE, _PATH, text=True, fixed=True),
    "trace": Dataset(_trace, {"num_prompts": None}, _PATH, fixed=True),
}
ALIASES = {"prefix-shared": "prefix_repetition", "multi_turn": "multi-turn"}
