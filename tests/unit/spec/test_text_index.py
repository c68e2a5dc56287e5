"""The proposers that search texts, against plain Python searches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quire.core.batch import NewSequence
from quire.core.config import SpeculativeConfig
from quire.core.options import RequestInputs, RequestOptions
from quire.core.sampling_params import SamplingParams
from quire.runner.drafts import Proposer
from quire.runner.state import SequenceStates
from quire.spec.text_index import ngram_proposer, suffix_proposer

LENGTH = 400


class Texts:
    """Sequences in slots, as the runner has them."""

    def __init__(self, proposer: Proposer, slots: int = 2) -> None:
        self.states = SequenceStates(slots, LENGTH, 8)
        self.proposer = proposer

    def begin(self, slot: int, prompt: Sequence[int], salt: str | None = None) -> None:
        inputs = RequestInputs(RequestOptions(cache_salt=salt))
        new = NewSequence("r", list(prompt), len(prompt), SamplingParams(), inputs)
        self.states.num_tokens[slot] = 0
        self.extend(slot, prompt)
        self.proposer.begin(self.states, slot, new)

    def extend(self, slot: int, tokens: Sequence[int]) -> None:
        end = int(self.states.num_tokens[slot])
        self.states.token_ids[slot, end : end + len(tokens)] = tokens
        self.states.num_tokens[slot] += len(tokens)

    def end(self, slot: int) -> None:
        self.proposer.end(self.states, slot)

    def drafts(self, slot: int, most: int) -> list[int]:
        counts = self.proposer.propose(self.states, np.array([slot]), np.array([most]))
        end = int(self.states.num_tokens[slot])
        return self.states.token_ids[slot, end : end + int(counts[0])].tolist()


def looked_up(text: list[int], shortest: int, longest: int, most: int) -> list[int]:
    """What followed the first occurrence of the longest n-gram at the end of `text`."""
    for n in range(min(longest, len(text) - 1), shortest - 1, -1):
        for begin in range(len(text) - n):
            if text[begin : begin + n] == text[-n:]:
                return text[begin + n : begin + n + most]
    return []


def ngram(shortest: int, longest: int) -> SpeculativeConfig:
    return SpeculativeConfig("ngram", 6, prompt_lookup_min=shortest, prompt_lookup_max=longest)


@pytest.mark.parametrize("lengths", [(1, 1), (1, 4), (2, 3), (5, 5)])
def test_ngrams_are_found_as_by_a_plain_search(lengths: tuple[int, int]) -> None:
    config = ngram(*lengths)
    random = np.random.default_rng(0)
    texts = Texts(ngram_proposer(config, 2))
    found = 0
    for vocabulary in (2, 5, 60):
        known: list[list[int]] = []
        for slot in range(2):
            known.append(random.integers(0, vocabulary, 1 + 40 * slot).tolist())
            texts.begin(slot, known[slot])
        for _ in range(60):
            slot = int(random.integers(2))
            most = int(random.integers(1, 7))
            wanted = looked_up(known[slot], *lengths, most)
            assert texts.drafts(slot, most) == wanted
            found += bool(wanted)
            new = random.integers(0, vocabulary, int(random.integers(1, 4))).tolist()
            known[slot] += new
            texts.extend(slot, new)
        texts.end(0)
        texts.end(1)
    assert found > 20


def test_drafts_end_with_the_row_and_at_embeddings() -> None:
    texts = Texts(ngram_proposer(ngram(1, 2), 2))
    texts.begin(0, [1, 2] * (LENGTH // 2 - 1) + [1])
    assert texts.drafts(0, 6) == [2]
    texts.begin(1, [7, -1, -1, 7])
    assert texts.drafts(1, 6) == []


def suffix(**fields: float) -> Proposer:
    named = {f"suffix_decoding_{name}": value for name, value in fields.items()}
    return suffix_proposer(SpeculativeConfig("suffix", 24, **named), 2)  # type: ignore[arg-type]


def test_the_longest_context_decides() -> None:
    texts = Texts(suffix())
    texts.begin(0, [9, 1, 2, 3, 50, 51, 52, 8, 2, 3, 60, 61, 62, 4, 9, 1, 2, 3])
    assert texts.drafts(0, 8) == [50, 51, 52, 8]  # four tokens of context, four drafts
    assert texts.drafts(0, 2) == [50, 51]


def test_the_most_frequent_continuation_wins() -> None:
    texts = Texts(suffix(max_spec_factor=4.0))
    texts.begin(0, [0, 7, 1, 1, 3, 7, 2, 2, 4, 7, 2, 2, 5, 7])
    assert texts.drafts(0, 4) == [2, 2, 5, 7]  # then the newest of two
    unsure = Texts(suffix(max_spec_factor=4.0, min_token_prob=0.5))
    unsure.begin(0, [0, 7, 1, 1, 3, 7, 2, 2, 4, 7, 2, 2, 5, 7])
    assert unsure.drafts(0, 4) == [2, 2]


def test_earlier_answers_are_searched_unless_salted() -> None:
    texts = Texts(suffix())
    prompt, answer = [1, 2, 3], [10, 11, 12, 13, 14, 15, 16]
    for salt in ("secret", None):
        texts.begin(0, prompt, salt)
        texts.extend(0, answer)
        texts.drafts(0, 1)
        texts.begin(1, [30, 10, 11, 12, 13])
        assert texts.drafts(1, 3) == []  # it is still running
        texts.end(1)
        texts.end(0)
        for own in ("other", None):
            texts.begin(1, [30, 10, 11, 12, 13], own)
            private = salt is not None or own is not None
            assert texts.drafts(1, 3) == ([] if private else [14, 15, 16])
            texts.end(1)
    texts.begin(1, [40, 1, 2, 3])
    assert texts.drafts(1, 3) == []  # prompts are no answers


def test_old_answers_are_forgotten() -> None:
    texts = Texts(suffix(max_cached_requests=2))
    for number in range(4):
        texts.begin(0, [1])
        texts.extend(0, [100 * number + i for i in range(10)])
        texts.end(0)
    for number in range(4):
        texts.begin(1, [100 * number + i for i in range(4)])
        wanted = [100 * number + i for i in range(4, 6)] if number >= 2 else []
        assert texts.drafts(1, 2) == wanted
        texts.end(1)


def test_a_ring_of_answers_wraps_around() -> None:
    """Every answer is longer than the ring's share; only newer ones are found."""
    texts = Texts(suffix(max_cached_requests=1))
    for number in range(12):
        texts.begin(0, [1])
        tokens = np.random.default_rng(number).integers(0, 2**31 - 1, LENGTH - 50).tolist()
        texts.extend(0, tokens)
        texts.end(0)
        for shown in (tokens[:8], tokens[-20:-10]):
            texts.begin(1, shown)
            start = tokens.index(shown[-1]) + 1
            assert texts.drafts(1, 5) == tokens[start : start + 5]
            texts.end(1)


def test_a_growing_text_is_still_found() -> None:
    """Past the sizes at which its index grows."""
    texts = Texts(suffix())
    tokens = np.random.default_rng(0).permutation(LENGTH - 50).tolist()
    texts.begin(0, tokens[:1])
    for token in tokens[1:]:
        texts.extend(0, [token])
        assert texts.drafts(0, 2) == []
    texts.extend(0, tokens[3:9])
    assert texts.drafts(0, 5) == tokens[9:14]
