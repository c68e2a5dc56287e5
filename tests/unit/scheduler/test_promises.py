"""Requests whose promised blocks are missing, and blocks that are still to be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.core.config import CacheConfig, SchedulerConfig, TierConfig
from quire.core.errors import InvalidRequestError
from quire.core.options import KVTransfer, RequestInputs, RequestOptions
from quire.core.request import FinishReason, Request
from quire.core.sampling_params import SamplingParams
from quire.kv.lower_tiers import PromisedBlocks
from quire.kv.manager import KVCacheManager
from quire.scheduler.promises import Promises
from quire.scheduler.scheduler import Scheduler
from tests.unit.scheduler.steps import BLOCK, request, sampled, step


def promised(length: int, promised: int) -> Request:
    transfer = KVTransfer(promised=tuple(b"%032d" % index for index in range(promised)))
    inputs = RequestInputs(RequestOptions(kv_transfer=transfer))
    given = SamplingParams()
    return Request("r", [1] * length, given, arrival_time=0.0, max_model_len=999, inputs=inputs)


@pytest.mark.parametrize(
    ("length", "wanted"), [(5 * BLOCK, 2), (2 * BLOCK + 1, 2), (2 * BLOCK, 1), (BLOCK, 0)]
)
def test_promised_blocks_that_a_prompt_needs_are_counted(length: int, wanted: int) -> None:
    """All but the block of its last token, which is computed anyway."""
    kv = KVCacheManager(CacheConfig(BLOCK, 8))
    Promises(kv, fails=False).check(promised(length, 2))
    if not wanted:
        Promises(kv, fails=True).check(promised(length, 2))
        return
    with pytest.raises(InvalidRequestError, match=f"^{wanted} KV blocks .* promised, and 0 are"):
        Promises(kv, fails=True).check(promised(length, 2))


def test_only_a_request_with_promised_blocks_ends_with_its_loads() -> None:
    kv = KVCacheManager(CacheConfig(BLOCK, 8))
    ended = promised(BLOCK, 1)
    output = Promises(kv, fails=True).broken(ended)
    assert (output.request_id, output.finish_reason) == ("r", FinishReason.ERROR)
    assert ended.finish_reason is FinishReason.ERROR
    assert Promises(kv, fails=True).broken(promised(BLOCK, 0)) is None
    assert Promises(kv, fails=False).broken(promised(BLOCK, 1)) is None


def test_a_scheduler_goes_on_until_blocks_are_written(tmp_path: Path) -> None:
    tiers = TierConfig(directory=str(tmp_path), disk_bytes=1 << 20)
    s = Scheduler(SchedulerConfig(1000, 4, 64), CacheConfig(BLOCK, 8, tiers=tiers))
    s.add(request("a", BLOCK + 2, max_tokens=1))
    step(s)
    assert not s.requests
    assert s.has_unfinished()
    assert s.schedule(0.0).block_copies is not None
    assert not s.has_unfinished()


@pytest.mark.parametrize("fails", [False, True])
def test_promised_blocks_are_found_from_then_on(fails: bool) -> None:
    tiers = TierConfig(num_offload_slots=1)
    kv = KVCacheManager(CacheConfig(BLOCK, 8, tiers=tiers), lower=[PromisedBlocks()])
    keys = kv.hasher.extend(promised(2 * BLOCK + 1, 0))
    asked = promised(2 * BLOCK + 1, 0)
    asked.inputs = RequestInputs(RequestOptions(kv_transfer=KVTransfer(promised=tuple(keys))))
    Promises(kv, fails=fails).check(asked)
    assert kv.num_found(asked) == 2


def test_a_request_ends_with_its_promise() -> None:
    """At once if a block is missing, or when its load fails."""
    tiers = TierConfig(num_offload_slots=1)
    limits = SchedulerConfig(1000, 4, 64, fails_without_blocks=True)
    s = Scheduler(limits, CacheConfig(BLOCK, 8, tiers=tiers), lower=[PromisedBlocks()])
    asked = promised(2 * BLOCK + 1, 0)
    keys = tuple(s.kv.hasher.extend(promised(2 * BLOCK + 1, 0)))
    asked.inputs = RequestInputs(RequestOptions(kv_transfer=KVTransfer(promised=keys)))
    with pytest.raises(InvalidRequestError, match="were promised"):
        s.add(promised(2 * BLOCK + 1, 2))
    assert not s.has_unfinished()
    s.add(asked)
    batch = s.schedule(0.0)
    failed = [batch.block_copies.loads[1].block]
    (output,) = s.update(batch, sampled(s, batch, 5, failed_loads=failed), 0.0).outputs
    assert (output.request_id, output.finish_reason) == ("r", FinishReason.ERROR)
    assert not s.has_unfinished()
    s.check_integrity()
