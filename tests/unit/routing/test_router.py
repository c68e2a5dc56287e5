"""Decisions of the router, with a cost of one second per token."""

from __future__ import annotations

import pytest

from quire.core.messages import (
    AddRequest,
    BlockChanges,
    CoreOutput,
    RequestEvent,
    StepOutputs,
)
from quire.core.options import RequestInputs, RequestOptions
from quire.core.request import FinishReason, pack_tokens
from quire.core.sampling_params import SamplingParams
from quire.routing.router import CacheAwareRouter, Prompt, Prompts
from tests.unit.scheduler.steps import Tokens

BLOCK = 4


@pytest.fixture
def router() -> CacheAwareRouter:
    return CacheAwareRouter(3, Tokens(), block_size=BLOCK, max_num_seqs=8)


def prompt(name: str, blocks: int) -> Prompt:
    return Prompt([f"{name}{i}".encode() for i in range(blocks)], blocks * BLOCK + 1)


def outputs(*results: CoreOutput, **fields: object) -> StepOutputs:
    return StepOutputs([*results], None, 0.0, **fields)  # type: ignore[arg-type]


def send(router: CacheAwareRouter, name: str, wanted: Prompt) -> int:
    replica = router.choose(wanted)
    router.add(replica, name, wanted)
    return replica


def serve(router: CacheAwareRouter, replica: int, name: str, wanted: Prompt) -> None:
    """Send a request, let it end, and report its blocks."""
    router.add(replica, name, wanted)
    done = CoreOutput(name, [1], FinishReason.STOP)
    router.note(replica, outputs(done, blocks=BlockChanges([*wanted.hashes], [])))


def test_uncached_tokens_of_the_best_of_some_replicas(router: CacheAwareRouter) -> None:
    long = prompt("a", 5)
    serve(router, 1, "whole", long)
    serve(router, 2, "part", prompt("a", 2))
    assert router.num_uncached(long, 0b110) == 1
    assert router.num_uncached(long, 0b101) == 3 * BLOCK + 1
    assert router.num_uncached(long, 0b001) == long.num_tokens


def test_equal_replicas_take_turns_while_they_work(router: CacheAwareRouter) -> None:
    assert [send(router, str(i), prompt(str(i), 2)) for i in range(6)] == [0, 1, 2, 0, 1, 2]


def test_idle_replicas_with_emptier_caches_come_first(router: CacheAwareRouter) -> None:
    serve(router, 0, "a", prompt("a", 3))
    serve(router, 1, "b", prompt("b", 1))
    assert router.choose(prompt("c", 2)) == 2
    assert router.choose(prompt("c", 2), among=0b011) == 1


def test_a_conversation_stays_until_waiting_costs_more(router: CacheAwareRouter) -> None:
    talk = prompt("talk", 5)
    serve(router, 1, "talk", talk)
    assert router.choose(talk) == 1
    router.add(1, "short", prompt("short", 2))  # 9 tokens; computing again takes 20
    assert router.choose(talk) == 1
    router.add(1, "long", prompt("long", 6))
    assert router.choose(talk) == 0
    router.remove("long")
    assert router.choose(talk) == 1


def test_long_answers_leave_their_prefix_to_the_others(router: CacheAwareRouter) -> None:
    """Each row makes a step a second longer, for the half of an answer that the others have left:
    after short answers that is less than computing 20 tokens again, after long ones more."""
    talk = prompt("talk", 5)
    serve(router, 1, "talk", talk)
    router.add(1, "other", talk)
    router.note(1, outputs(CoreOutput("other", [1])))
    assert router.choose(talk) == 1
    router.add(2, "long", prompt("long", 1))
    router.note(2, outputs(CoreOutput("long", [1] * 79, FinishReason.LENGTH)))
    assert router.choose(talk) == 0


def test_evicted_blocks_attract_nobody(router: CacheAwareRouter) -> None:
    talk = prompt("talk", 5)
    serve(router, 2, "talk", talk)
    assert router.choose(talk) == 2
    router.note(2, outputs(blocks=BlockChanges([], [*talk.hashes])))
    assert router.choose(talk) == 0


def test_a_lost_replica_has_no_blocks(router: CacheAwareRouter) -> None:
    talk = prompt("talk", 5)
    serve(router, 2, "talk", talk)
    router.forget(2)
    assert router.choose(talk) == 0


def test_requests_with_the_same_new_prefix_meet(router: CacheAwareRouter) -> None:
    both = prompt("both", 50)
    assert send(router, "first", both) == 0
    router.note(0, outputs(events=[RequestEvent("first", "prefill", 0.0, tokens=190)]))
    assert router.choose(both) == 0
    router.remove("first")  # aborted before its blocks were computed
    assert router.choose(both) == 0
    assert router.choose(both, among=0b110) == 1


def test_hashes_depend_on_all_that_separates_caches() -> None:
    prompts = Prompts(BLOCK, "sha256", 0)

    def message(tokens: list[int], salt: str | None = None) -> AddRequest:
        inputs = RequestInputs(RequestOptions(cache_salt=salt))
        return AddRequest("r", pack_tokens(tokens), SamplingParams(), 0.0, inputs)

    plain = prompts.of(message([*range(9)]))
    assert (len(plain.hashes), plain.num_tokens) == (2, 9)
    assert prompts.of(message([*range(8), 99])).hashes == plain.hashes
    assert prompts.of(message([*range(9)], "salt")).hashes[0] != plain.hashes[0]
