"""Deterministic simulation: the real core, random worlds, every invariant after every step.

A failure names its seed; `python -m tests.simulation.soak --seed N` replays it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from quire.core.request import Request, pack_tokens
from quire.scheduler.seats import Seats
from tests.simulation.soak import failure, main, replay_command
from tests.simulation.world import World, run_world

SEEDS = 2_000
BATCHES = 80
FEW = range(40)
"""The worlds of `make test`."""
FAILED_ONCE: list[int] = [3, 733842, 1006968, 1000211, 10031304, 10255855]
"""Seeds that found a bug; they run for ever."""


@pytest.mark.slow  # `test_worlds_preempt_and_share` runs a few
@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_worlds(batch: int) -> None:
    size = SEEDS // BATCHES
    results = [failure(seed) for seed in range(batch * size, (batch + 1) * size)]
    wrong = [f"{error}: {replay_command(seed)}" for seed, error in results if error]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(seed: int) -> None:
    run_world(seed)


def test_the_same_seed_is_the_same_world() -> None:
    def history(seed: int) -> list[tuple[str, list[int], list[float]]]:
        transcripts = World(seed).run()
        return [(k, t.token_ids, t.token_times) for k, t in transcripts.items()]

    assert history(11) == history(11)


def noted_victims(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many requests each one that went first displaced, from now on."""
    victims = list[int]()
    advance = Seats._advance

    def noted(seats: Seats, first: Request, given_up: Sequence[Request]) -> None:
        victims.append(len(given_up))
        advance(seats, first, given_up)

    monkeypatch.setattr(Seats, "_advance", noted)
    return victims


def test_worlds_preempt_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds are worth simulating: they do what they are there to try."""
    victims = noted_victims(monkeypatch)
    stats = [run_world(seed).core.scheduler.stats() for seed in FEW]
    assert sum(s.num_preemptions for s in stats) > 30
    assert sum(victims) > 0
    assert 0 in victims
    assert sum(s.prefix_cache_hits for s in stats) > 1000
    hosts = [s.host_tier for s in stats if s.host_tier]
    assert sum(host.swapped_in for host in hosts) > 10
    assert sum(host.loaded for host in hosts) > 10
    assert sum(host.failed for host in hosts) > 0


def test_long_contexts_of_one_client_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside them, those of others get what is theirs, and all get their own tokens."""
    chosen, victims = Counter[bool](), noted_victims(monkeypatch)
    last_row = Seats.last_row

    def noted(seats: Seats) -> int:
        row = last_row(seats)
        chosen[row == len(seats._running) - 1] += 1
        return row

    monkeypatch.setattr(Seats, "last_row", noted)
    for seed in range(60):
        world = World(seed)
        for number, request in enumerate(world.requests):
            request.arrival_time = 0.1 * (1 + number)
            is_long = number < 2
            length = 2 * world.capacity // 5 if is_long else world.block_size // 2
            request.prompt_token_ids = pack_tokens([number + 1] * length)
            params = request.sampling_params.replace(max_tokens=40, ignore_eos=True)
            request.sampling_params = params
            options = replace(request.inputs.options, client="long" if is_long else "")
            request.inputs = replace(request.inputs, options=options)
        world.check(world.run())
    assert chosen[False] > 0
    assert chosen[True] > 5
    assert sum(victims) > 5


def test_whatever_cannot_be_loaded_is_computed_again() -> None:
    """Every load fails, of swapped blocks, evicted ones and files: nobody waits for ever."""
    failed = swapped = 0
    for seed in range(20):
        world = World(seed)
        if tier := world.core.scheduler.kv.tier:
            world.corruption_rate = 1.0
            world.check(world.run())
            failed += tier.stats().failed
            swapped += tier.stats().swapped_in
    assert failed > 5
    assert swapped > 2


def test_a_soak_tells_how_it_went(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "5", "--jobs", "1"]) == 0
    assert "5 worlds" in capsys.readouterr().out
    assert main(["--seed", "7"]) == 0
