"""Adapters in the core and in front of it: accepted, in use, unloaded, freed."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from quire.core.errors import ConfigError, InvalidRequestError, ModelNotFoundError
from quire.core.lora import LoRAConfig, LoRARequest
from quire.core.messages import AddRequest
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.engine.core import EngineCore
from quire.executor.base import Prepare
from quire.frontend.input.known_adapters import AdapterClient, Call
from quire.resolve.engine import engine_args, resolve
from quire.system.hardware import detect
from tests.unit.engine.echo import EchoExecutor
from tests.unit.engine.fakes import engine_config

ADAPTER = LoRARequest("a", 1, "somewhere", b"digest")


class Noting(EchoExecutor):
    """Notes which adapters were removed; `loading` is what a request has to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.removed: list[int] = []
        self.loading: Future[Any] | None = None

    def call(self, method: str, args: list[Any]) -> Any:
        assert method == "remove_lora"
        self.removed += args

    def prepare(self, wanted: Prepare) -> Future[Any] | None:
        return self.loading if wanted.lora_request else None


def add(core: EngineCore, name: str, lora_request: LoRARequest | None = ADAPTER) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=3)
    prompt = pack_tokens(list(b"abc"))
    inputs = RequestInputs(RequestOptions(lora_request=lora_request))
    core.add(AddRequest(name, prompt, params, 0.0, inputs))


def test_an_adapter_is_freed_after_its_last_request() -> None:
    executor = Noting()
    core = EngineCore(engine_config(), executor)
    add(core, "a")
    core.step()
    add(core, "b")
    core.call("remove_lora", [1])
    assert executor.removed == []
    ends = []
    while core.has_work():
        ends.append(len(executor.removed))
        core.step()
    assert set(ends) == {0}
    assert executor.removed == [1]


def test_an_abort_frees_it_too_and_so_does_nobody() -> None:
    executor = Noting()
    core = EngineCore(engine_config(), executor)
    executor.loading = Future()  # it waits outside of the line
    add(core, "a")
    add(core, "b", None)
    core.call("remove_lora", [1])
    core.step()
    assert executor.removed == []
    core.abort(["a"])
    assert executor.removed == [1]
    core.call("remove_lora", [2])
    assert executor.removed == [1, 2]


def test_who_waits_for_an_adapter_holds_up_nobody() -> None:
    executor = Noting()
    core = EngineCore(engine_config(), executor)
    executor.loading = Future()
    add(core, "a")
    add(core, "b", None)
    outputs = core.step()
    assert [output.request_id for output in outputs.each()] == ["b"]
    executor.loading.set_exception(InvalidRequestError("it has gone"))
    outputs = core.step()
    assert {o.request_id: o.stop_reason for o in outputs.each()}["a"] == "it has gone"


async def no_call(*_: Any) -> Any:
    raise AssertionError


def known(call: Call = no_call, **changes: Any) -> AdapterClient:
    return AdapterClient(engine_config(**{"lora": LoRAConfig(), **changes}), call)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (LoRARequest("a", 0, "x"), "lora_int_id"),
        (LoRARequest("a", 2**63, "x"), "lora_int_id"),
        (LoRARequest("", 1, "x"), "lora_name"),
        (LoRARequest("a", 1, ""), "lora_path"),
    ],
)
def test_requests_that_are_none(request_: LoRARequest, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        known().find(request_)
    assert refused.value.param == param


async def test_an_id_is_one_adapter() -> None:
    answers: list[Any] = [{"digest": b"d"}, None, {"error": "why"}]

    async def call(*_: Any) -> Any:
        return answers.pop(0)

    adapters = known(call)
    wanted = LoRARequest("a", 1, "x")
    assert adapters.find(wanted) is None
    found = await adapters.add(wanted)
    assert found.digest == b"d"
    assert adapters.find(wanted) == adapters.find(found) == found
    with pytest.raises(InvalidRequestError, match="already"):
        adapters.find(LoRARequest("b", 1, "y"))
    assert await adapters.remove(1)
    assert not await adapters.remove(1)
    with pytest.raises(ModelNotFoundError, match="was unloaded"):
        adapters.find(found)
    with pytest.raises(InvalidRequestError, match="cannot be served: why"):
        await adapters.add(wanted)
    with pytest.raises(InvalidRequestError, match="--enable-lora"):
        known(lora=None).find(wanted)


async def test_a_client_asks_until_it_is_loaded() -> None:
    answers: list[Any] = [None, None, {"digest": b"d"}]
    asked: list[tuple[Any, ...]] = []

    async def call(*what: Any) -> Any:
        asked.append(what)
        return answers.pop(0) if answers else None

    client = AdapterClient(engine_config(lora=LoRAConfig()), call)
    found = await client.add(LoRARequest("a", 1, "x"))
    assert asked == [("add_lora", "a", 1, "x")] * 3
    assert await client.add(found) == found
    assert await client.remove(1)
    assert not await client.remove(1)
    assert asked[3:] == [("remove_lora", 1)]


def test_limits_are_checked() -> None:
    def config(**fields: Any) -> LoRAConfig | None:
        return resolve(engine_args("embedded", fields), detect()).config.lora

    assert config() is None
    assert config(enable_lora=True, max_loras=3) == LoRAConfig(3, 16, 3)
    assert config(enable_lora=True, max_cpu_loras=5, max_lora_rank=7) == LoRAConfig(1, 7, 5)
    with pytest.raises(ConfigError, match="max_cpu_loras"):
        config(enable_lora=True, max_loras=3, max_cpu_loras=2)
    with pytest.raises(ConfigError, match="max_lora_rank"):
        config(enable_lora=True, max_lora_rank=0)
    with pytest.raises(ConfigError, match="needs --enable-lora"):
        config(max_loras=2)
