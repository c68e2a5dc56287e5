"""Errors as the core tells them: the request's own faults stay apart from the engine's."""

from __future__ import annotations

import pytest

from quire.core.errors import ConfigError, InvalidRequestError, reason_of, refusal_of


@pytest.mark.parametrize("param", [None, "logit_bias", "tools[0].function.parameters"])
@pytest.mark.parametrize("what", ["It is wrong.", "two\nlines (and): more", ""])
def test_a_requests_fault_is_read_back(what: str, param: str | None) -> None:
    refusal = refusal_of(reason_of(InvalidRequestError(what, fix="Change it.", param=param)))
    assert (str(refusal), refusal.param) == (f"{what} Change it.", param)


@pytest.mark.parametrize(
    "error", [ConfigError("It is wrong."), RuntimeError("x"), RuntimeError(), ValueError("y")]
)
def test_another_fault_is_not_the_requests(error: Exception) -> None:
    assert reason_of(error)
    assert refusal_of(reason_of(error)) is None
