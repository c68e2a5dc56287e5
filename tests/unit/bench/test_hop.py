"""The time of a hop between two machines' stages."""

from __future__ import annotations

import pytest

from quire.bench import hop
from quire.core.errors import QuireError


def test_rows_go_to_another_process_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop, "ROUNDS", 20)
    assert hop.hop_ms(3, 8, "bfloat16") > 0.0


def test_an_end_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(QuireError, match="other end of the hop"):
        hop.hop_ms(3, 8, "float32")
