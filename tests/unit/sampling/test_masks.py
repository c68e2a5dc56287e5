"""allowed_token_ids, bad_words, min_tokens, logit_bias."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from transformers import MinNewTokensLengthLogitsProcessor, NoBadWordsLogitsProcessor
from transformers.generation.logits_process import SequenceBiasLogitsProcessor

from quire.core.errors import InvalidRequestError
from quire.core.sampling_params import SamplingParams
from quire.ops.filters import FloatRow
from quire.ops.sample_row import LogitEdits
from quire.sampling.masks import BadWords, Masks, TokenRow

VOCAB = 20
TOKEN = st.integers(0, 3)


def logits(seed: int = 0) -> FloatRow:
    return np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32)


def tokens(*ids: int) -> TokenRow:
    return np.array(ids, dtype=np.int32)


def apply(params: SamplingParams, output: TokenRow, stops: tuple[int, ...] = ()) -> FloatRow:
    x = logits()
    edits = LogitEdits()
    Masks(params, stops, VOCAB).add_to(edits, output)
    edits.apply(x)
    return x


def test_only_allowed_tokens_are_left() -> None:
    x = apply(SamplingParams(allowed_token_ids=[3, 17, 3]), tokens())
    assert np.flatnonzero(np.isfinite(x)).tolist() == [3, 17]
    assert x[3] == logits()[3]


@pytest.mark.parametrize(
    "output", [(), (4,), (5, 4), (4, 5), (9, 4, 5), (4, 5, 9), (1, 2, 3, 4, 5)]
)
def test_bad_words_are_transformers(output: tuple[int, ...]) -> None:
    words = [[7], [4, 5], [4, 5, 6], [9, 9]]
    x = apply(SamplingParams(bad_words=["…"], bad_words_token_ids=words), tokens(*output))
    oracle = NoBadWordsLogitsProcessor(bad_words_ids=words, eos_token_id=0)
    # Transformers looks at the prompt as well; token 0 stands for one that begins no word.
    context = torch.tensor([[0, *output]])
    expected = oracle(context, torch.from_numpy(logits())[None])[0].numpy()
    np.testing.assert_array_equal(x, expected)


def test_bad_words_do_not_begin_in_the_prompt() -> None:
    params = SamplingParams(bad_words_token_ids=[[4, 5]])
    assert np.isfinite(apply(params, tokens())[5])


@pytest.mark.parametrize("generated", [0, 2, 3, 4])
def test_min_tokens_is_transformers(generated: int) -> None:
    params = SamplingParams(min_tokens=3)
    output = tokens(*range(generated))
    x = apply(params, output, stops=(2, 11))
    oracle = MinNewTokensLengthLogitsProcessor(1, 3, [2, 11])
    context = torch.zeros(1, 1 + generated, dtype=torch.long)
    expected = oracle(context, torch.from_numpy(logits())[None])[0].numpy()
    np.testing.assert_array_equal(x, expected)
    assert Masks.needed(params, generated) == (generated < 3)


def test_logit_bias_is_transformers() -> None:
    bias = {3: 2.5, 19: -100.0, 0: 0.25}
    x = apply(SamplingParams(logit_bias=bias), tokens())
    oracle = SequenceBiasLogitsProcessor([[[t], b] for t, b in bias.items()])
    expected = oracle(torch.zeros(1, 1, dtype=torch.long), torch.from_numpy(logits())[None])
    np.testing.assert_allclose(x, expected[0].numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias={VOCAB: 1.0}), "logit_bias"),
        (SamplingParams(logit_bias={-1: 1.0}), "logit_bias"),
        (SamplingParams(allowed_token_ids=[0, 99]), "allowed_token_ids"),
        (SamplingParams(bad_words_token_ids=[[1, 20]]), "bad_words"),
    ],
)
def test_ids_outside_the_vocabulary_are_refused(params: SamplingParams, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=field) as error:
        Masks(params, [], VOCAB)
    assert error.value.param == field


def test_words_nobody_tokenized_are_refused() -> None:
    params = SamplingParams(bad_words=["damn"])
    assert Masks.needed(params, 0)
    with pytest.raises(InvalidRequestError, match="not been tokenized"):
        Masks(params, [], VOCAB)


@pytest.mark.parametrize(
    "params",
    [
        {"allowed_token_ids": [1]},
        {"bad_words": ["x"], "bad_words_token_ids": [[1]]},
        {"bad_words_token_ids": [[1]]},
        {"logit_bias": {1: 1.0}},
        {"min_tokens": 1},
    ],
)
def test_each_mask_alone_is_needed(params: dict[str, Any]) -> None:
    assert Masks.needed(SamplingParams(**params), 0)
    assert not Masks.needed(SamplingParams(), 0)


@example([[2, 1], [3, 2, 0]], [3, 2])  # two lengths behind one token
@given(st.lists(st.lists(TOKEN, min_size=1, max_size=4), max_size=12), st.lists(TOKEN, max_size=6))
def test_bad_words_are_those_that_the_output_begins(
    words: list[list[int]], said: list[int]
) -> None:
    found = BadWords(words, VOCAB)
    banned = {*found.single.tolist(), *found.completed_after(tokens(*said))}
    fits = [w for w in words if len(w) - 1 <= len(said)]
    assert banned == {w[-1] for w in fits if said[len(said) - len(w) + 1 :] == w[:-1]}


def test_a_step_looks_up_few_bad_words_of_many() -> None:
    """Only the lengths of words whose last token but one was just generated."""
    words = [
        [first, second, last] for first in range(19) for second in range(19) for last in (1, 2)
    ]
    found = BadWords(words, VOCAB)
    assert found.completed_after(tokens(7, 18)) == {1, 2}
    assert found.completed_after(tokens(18, 19)) == set()
    assert sum(map(len, found._lengths.values())) == 19


def test_packed_allowed_tokens_are_the_listed_ones() -> None:
    bits = np.zeros(VOCAB, dtype=np.uint8)
    bits[[3, 17]] = 1
    packed = SamplingParams(allowed_tokens=np.packbits(bits, bitorder="little").tobytes())
    assert Masks.needed(packed, 0)
    listed = SamplingParams(allowed_token_ids=[3, 17])
    np.testing.assert_array_equal(apply(packed, tokens()), apply(listed, tokens()))
