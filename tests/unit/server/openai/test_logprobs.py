"""Log-probabilities as the endpoints return them."""

from msgspec.json import decode

from quire.core.outputs import Logprob
from quire.server.openai.logprobs import completion_logprobs
from quire.server.turns import at_once


def test_the_likeliest_of_equal_texts_is_reported() -> None:
    """Else lm-evaluation-harness would take the chosen token for the likeliest."""
    position = {
        7: Logprob(-5.0, 9, "\ufffd"),
        2: Logprob(-0.25, 1, "\ufffd"),
        3: Logprob(-3.0, 2, "\ufffd"),
        4: Logprob(-4.0, 3, "a"),
    }
    found, _ = at_once(completion_logprobs([position], 3, 0, (0, "")))
    assert found.token_logprobs == [-5.0]
    [top] = found.top_logprobs
    assert decode(top) == {"\ufffd": -0.25, "a": -4.0}  # type: ignore[arg-type]
