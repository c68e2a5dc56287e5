from __future__ import annotations

from quire.core.config import CacheConfig
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.kv.manager import KVCacheManager

BLOCK = 16


def manager(num_blocks: int, *, caching: bool = True) -> KVCacheManager:
    return KVCacheManager(CacheConfig(BLOCK, num_blocks, caching))


def request(name: str, token_ids: list[int], **options: object) -> Request:
    params = SamplingParams(prompt_logprobs=options.pop("prompt_logprobs", None))
    return Request(name, token_ids, params, arrival_time=0, max_model_len=9999, **options)


def admit(kv: KVCacheManager, r: Request) -> list[int]:
    prefix = kv.find_prefix(r)
    assert kv.can_admit(r, prefix, reserved=0)
    kv.admit(r, prefix, r.num_tokens)
    kv.enter(r, r.num_tokens)
    return prefix


def test_twelve_of_sixteen_cached_and_four_free_is_admitted() -> None:
    kv = manager(16)
    first = request("first", list(range(12 * BLOCK)))
    admit(kv, first)
    assert kv.pool.num_free == 4
    second = request("second", list(range(12 * BLOCK)) + [7] * (4 * BLOCK))
    assert len(admit(kv, second)) == 12
    assert kv.pool.num_free == 0
    kv.check_integrity()


def test_idle_cached_blocks_are_not_counted_twice() -> None:
    kv = manager(16)
    first = request("first", list(range(12 * BLOCK)))
    admit(kv, first)
    kv.free(first)
    assert kv.pool.num_free == 16
    second = request("second", list(range(12 * BLOCK)) + [7] * (4 * BLOCK))
    assert kv.can_admit(second, kv.find_prefix(second), reserved=0)
    assert not kv.can_admit(second, kv.find_prefix(second), reserved=1)


def test_the_last_token_is_always_computed() -> None:
    kv = manager(8)
    first = request("first", [1] * (2 * BLOCK))
    admit(kv, first)
    assert len(kv.find_prefix(request("again", [1] * (2 * BLOCK)))) == 1
    assert len(kv.find_prefix(request("longer", [1] * (2 * BLOCK + 1)))) == 2


def test_another_salt_finds_nothing() -> None:
    kv = manager(8)
    admit(kv, request("first", [1] * 40, cache_salt="a"))
    assert kv.find_prefix(request("b", [1] * 40, cache_salt="b")) == []
    assert kv.find_prefix(request("none", [1] * 40)) == []
    assert len(kv.find_prefix(request("a", [1] * 40, cache_salt="a"))) == 2


def test_prompt_logprobs_need_the_whole_prompt_computed() -> None:
    kv = manager(8)
    admit(kv, request("first", [1] * 40))
    assert kv.find_prefix(request("second", [1] * 40, prompt_logprobs=1)) == []


def test_caching_off_finds_and_counts_nothing() -> None:
    kv = manager(8, caching=False)
    admit(kv, request("first", [1] * 40))
    assert kv.find_prefix(request("second", [1] * 40)) == []
    assert kv.prefix_queries == kv.prefix_hits == 0


def test_the_least_recently_used_prefix_goes_first() -> None:
    kv = manager(4)
    old, new = request("old", [1] * 33), request("new", [2] * 17)
    admit(kv, old)
    kv.free(old)
    again = request("old", [1] * 33)
    assert len(kv.find_prefix(again)) == 2
    admit(kv, new)  # takes the two blocks that hold no prefix, or the oldest
    assert len(kv.find_prefix(again)) == 2
    kv.free(new)
    admit(kv, request("big", [3] * 17))
    # The tail of the oldest prefix went, its head stayed as long as it could.
    assert len(kv.find_prefix(again)) == 1


def test_discarded_blocks_are_never_found_again() -> None:
    kv = manager(8)
    first = request("first", [1] * 40)
    admit(kv, first)
    kv.discard(first)
    kv.free(first)
    assert kv.find_prefix(request("second", [1] * 40)) == []
    assert kv.pool.num_free == 8
    kv.check_integrity()


def test_hits_and_queries_are_counted_in_tokens() -> None:
    kv = manager(8)
    admit(kv, request("first", [1] * 40))
    admit(kv, request("second", [1] * 40))
    assert (kv.prefix_queries, kv.prefix_hits) == (80, 32)
