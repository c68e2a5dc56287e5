"""`kv_transfer_params` of a request."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quire.core.errors import InvalidRequestError
from quire.core.kv_sharing import TransferConfig
from quire.core.options import KVTransfer, RequestOptions
from quire.frontend.input.options import check_options, without_surplus
from quire.server.errors import ApiError
from quire.server.openai.protocol import CompletionRequest
from quire.server.request_options import _kv_transfer
from tests.unit.server.fake_engine import running


def read(params: Any, **fields: Any) -> KVTransfer | None:
    return _kv_transfer(
        msgspec.convert({"kv_transfer_params": params, **fields}, CompletionRequest)
    )


def test_the_fields_of_a_router() -> None:
    assert read(None) is None
    assert read({}) == KVTransfer()
    assert read({"do_remote_decode": True, "remote_host": None}) == KVTransfer(hands_over=True)
    ids = [bytes([number]) * 32 for number in (0, 255)]
    given: dict[str, Any] = {"do_remote_prefill": True, "remote_port": 5}
    given["remote_block_ids"] = [block.hex() for block in ids]
    assert read(given) == KVTransfer(promised=tuple(ids))
    assert read(given | {"do_remote_prefill": False}) == KVTransfer()


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({"do_remote_decode": True}, {"stream": True}),
        ({"do_remote_prefill": True, "remote_block_ids": [3, 4]}, {}),
        ({"do_remote_prefill": True, "remote_block_ids": ["xy" * 32]}, {}),
        ({"do_remote_prefill": True, "remote_block_ids": ["00" * 33]}, {}),
        ({"do_remote_prefill": True, "remote_block_ids": [""]}, {}),
    ],
)
def test_what_cannot_be_is_a_400(params: Any, fields: Any) -> None:
    with pytest.raises(ApiError) as error:
        read(params, **fields)
    assert error.value.status == 400
    assert error.value.param == "kv_transfer_params"


async def test_a_server_without_a_folder_reports_that_it_computes_the_prompt() -> None:
    promise = {"kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": ["00" * 32]}}
    async with running() as there:
        answer = (await there.complete(**promise)).json()
        [warning] = answer["warnings"]
        assert warning["param"] == "kv_transfer_params"
        assert "no --kv-transfer-config" in warning["message"]
        answer.pop("warnings")
        assert (await there.complete()).json()["choices"] == answer["choices"]
    async with running(strict_fields=True) as there:
        assert (await there.complete(**promise)).status_code == 400


def test_promised_blocks_beyond_the_prompt_stay_behind() -> None:
    options = RequestOptions(3, kv_transfer=KVTransfer(promised=(b"a", b"b", b"c")))
    assert without_surplus(options, 3) is options
    left = without_surplus(options, 1)
    assert left == RequestOptions(3, kv_transfer=KVTransfer(promised=(b"a",)))
    assert without_surplus(RequestOptions(), 0) == RequestOptions()


@pytest.mark.parametrize("role", [None, "kv_consumer", "kv_producer", "kv_both"])
def test_only_a_producer_hands_over(role: Any) -> None:
    transfer = TransferConfig(role, "a") if role else None
    options = RequestOptions(kv_transfer=KVTransfer(hands_over=True))
    check_options(RequestOptions(kv_transfer=KVTransfer(promised=(b"a",))), transfer)
    if role in ("kv_producer", "kv_both"):
        check_options(options, transfer)
        return
    with pytest.raises(InvalidRequestError, match="no producer"):
        check_options(options, transfer)
