"""Service level objectives: as they are written, and who met them."""

from __future__ import annotations

import pytest

from quire.bench.serving.slo import Slo
from quire.core.errors import ConfigError


def test_seconds_unless_a_unit_follows() -> None:
    assert Slo.parse("ttft=0.5,tpot=50ms") == Slo(ttft=0.5, tpot=0.05)
    assert Slo.parse(" itl = 1e-2 , E2EL=3s") == Slo(itl=0.01, e2e=3.0)
    assert Slo.parse("tpot=500us") == Slo(tpot=0.0005)


def test_goodput_is_in_milliseconds_as_in_vllm() -> None:
    assert Slo.parse_goodput(["ttft:500", "tpot:50", "e2el:2s"]) == Slo(0.5, 0.05, None, 2.0)


def test_it_reads_what_it_writes() -> None:
    slo = Slo(ttft=0.5, tpot=0.0123, e2e=10.0)
    assert Slo.parse(str(slo)) == slo


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=0", "ttft=-1", "ttft=1h", "x=1", "ttft=1,ttft=2", "e2e=inf"]
)
def test_what_it_cannot_read(text: str) -> None:
    with pytest.raises(ConfigError, match="Write for example --slo") as error:
        Slo.parse(text)
    assert error.value.param == "--slo"
    with pytest.raises(ConfigError, match="Write for example --goodput"):
        Slo.parse_goodput([text.replace("=", ":")])


def test_every_bound_must_be_kept() -> None:
    slo = Slo(ttft=0.5, tpot=0.05)
    assert slo.met(ttft=0.5, tpot=0.05, itl=9.0, e2e=9.0)
    assert not slo.met(ttft=0.51, tpot=0.05)
    assert not slo.met(ttft=0.5, tpot=0.06)
    assert slo.met(ttft=0.1, tpot=None), "one token has no time per token"
    assert not Slo(itl=0.1).met(itl=0.2)
    assert not Slo(e2e=1.0).met(e2e=1.1)
    assert Slo().met(ttft=1e9)
