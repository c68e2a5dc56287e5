import copy

import pytest

from quire.core.messages import TokenLogprobs, pack_logprobs
from quire.frontend.output.prompt_logprobs import PromptPositions
from quire.text.tokenizers.dummy import DummyTokenizer


def test_positions_are_read_as_a_list() -> None:
    tokenizer = DummyTokenizer(258)
    rows = [TokenLogprobs([98, 99], [-2.0, -0.5], 2), TokenLogprobs([99, 98], [-0.5, -2.0], 1)]
    found = PromptPositions([pack_logprobs(row) for row in rows], tokenizer)
    first, second, third = found
    assert first is None
    assert second is not None
    assert third is not None
    assert (list(second), list(third)) == ([98, 99], [99, 98])
    assert found[-1] == third
    assert found[1:] == [second, third]
    assert found == [None, second, third]
    assert found != [None, second]
    assert type(copy.deepcopy(found)) is list
    with pytest.raises(IndexError):
        found[3]
