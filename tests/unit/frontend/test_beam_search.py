"""The search itself, over a table of probabilities."""

from __future__ import annotations

import math

import pytest

from quire.core.beam_search import BeamSearchParams
from quire.core.errors import InvalidRequestError
from quire.core.outputs import CompletionOutput, Logprob, RequestOutput
from quire.core.sampling_params import SamplingParams
from quire.frontend.beam_search import beam_search

END = 9
NEXT = {
    (): {1: 0.6, 2: 0.4},
    (1,): {3: 0.55, 4: 0.45},
    (2,): {3: 0.9, END: 0.1},
    (1, 3): {END: 1.0},
    (1, 4): {END: 1.0},
    (2, 3): {END: 0.8, 5: 0.2},
}


def generate(prompts: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
    assert params.max_tokens == 1
    outputs = []
    for tokens in prompts:
        likely = {t: Logprob(math.log(p)) for t, p in NEXT[tuple(tokens[1:])].items()}
        completion = CompletionOutput(0, "", [], logprobs=[likely], finish_reason="length")
        outputs.append(RequestOutput("r", None, tokens, [completion], True))
    return outputs


def found(**fields: float) -> list[tuple[list[int], float, str | None]]:
    params = BeamSearchParams(**({"beam_width": 2, "max_tokens": 3} | fields))
    [output] = beam_search(generate, [[0]], params, [END])
    return [
        (s.tokens[1:], round(math.exp(s.cum_logprob), 4), s.finish_reason) for s in output.sequences
    ]


def test_the_likeliest_is_not_the_greedy_one() -> None:
    assert found(length_penalty=0.0) == [([1, 3, END], 0.33, "stop"), ([2, 3, END], 0.288, "stop")]
    assert found(beam_width=1, length_penalty=0.0) == [([1, 3, END], 0.33, "stop")]
    two = [([2, 3], 0.36, "length"), ([1, 3], 0.33, "length")]
    assert found(max_tokens=2, length_penalty=0.0) == two


def test_longer_ones_may_be_favoured() -> None:
    likely, longest = (found(beam_width=10, length_penalty=penalty) for penalty in (0.0, 9.0))
    assert [tokens for tokens, _, _ in likely][-2:] == [[2, 3, 5], [2, END]]
    assert longest[0] == ([2, 3, 5], 0.072, "length")
    assert longest[-1] == ([2, END], 0.04, "stop")


def test_an_early_stop_takes_the_first_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEXT, (), {1: 0.6, END: 0.4})
    monkeypatch.setitem(NEXT, (1,), {END: 0.9, 3: 0.1})
    one = {"beam_width": 1, "length_penalty": 0.0}
    assert found(**one, early_stopping=True) == [([END], 0.4, "stop")]
    assert found(**one) == [([1, END], 0.54, "stop")]


def test_ends_may_be_gone_past() -> None:
    with pytest.raises(KeyError):  # the table ends there
        found(ignore_eos=True, max_tokens=4)


@pytest.mark.parametrize(
    ("name", "value"),
    [("beam_width", 0), ("beam_width", 11), ("max_tokens", 0), ("length_penalty", 11.0)],
)
def test_what_is_out_of_range_is_named(name: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=name):
        found(**{name: value})
