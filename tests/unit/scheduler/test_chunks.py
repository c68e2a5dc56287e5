"""Chunks of a prompt take equally long, and are as many as pay."""

from __future__ import annotations

from quire.core.cost import RooflineCost
from quire.scheduler.chunks import LEAST, SLACK, TILE, LevelChunks

CHEAP_READS = RooflineCost(1e9, 1e4, 1e10, 1e7, 1e6, 1e11, 1e13, 5e12)
"""A chunk of 2,048 multiplies for 2 s/1,000 · 1,024, and reads weights for 10 ms."""
MOST = 2048


def seconds(chunk: int, behind: int, cost: RooflineCost = CHEAP_READS) -> float:
    return cost.seconds(chunk, 1, behind + chunk, chunk * behind + chunk * (chunk + 1) // 2)


def chunks_of(length: int, stages: int) -> list[tuple[int, int]]:
    """Each chunk with the tokens before it."""
    level, computed, found = LevelChunks(CHEAP_READS, stages, MOST), 0, []
    while computed < length:
        chunk = min(level.tokens(length, computed), length - computed)
        found.append((chunk, computed))
        computed += chunk
    return found


def makespan(chunks: list[tuple[int, int]], stages: int) -> float:
    """The time until the last stage has computed the last chunk."""
    free = [0.0] * stages
    for chunk, behind in chunks:
        end = 0.0
        for stage in range(stages):
            end = free[stage] = max(end, free[stage]) + seconds(chunk, behind) / stages
    return free[-1]


def test_chunks_of_a_long_prompt_take_equally_long() -> None:
    chunks = chunks_of(100_000, 4)
    times = [seconds(chunk, behind) for chunk, behind in chunks[:-1] if chunk < MOST]
    assert len(times) > 10
    assert max(times) < 1.1 * min(times)
    assert chunks[0][0] > 1.5 * chunks[-2][0]
    assert all(chunk % TILE == 0 for chunk, _ in chunks[:-1])


def test_they_beat_chunks_of_any_one_size() -> None:
    for length in (2_048, 16_384, 100_000):
        level = makespan(chunks_of(length, 4), 4)
        for size in (256, 512, 1024, 2048):
            equal = [(min(size, length - at), at) for at in range(0, length, size)]
            assert level < SLACK * makespan(equal, 4)


def test_steps_too_small_to_divide_are_full() -> None:
    """Chunks far into a long prompt take longer than one in its middle."""
    for most in (1, 16, LEAST):
        assert LevelChunks(CHEAP_READS, 2, most).tokens(100_000, 99_000) == most


def test_prompts_behind_each_other_fill_the_stages() -> None:
    level = LevelChunks(CHEAP_READS, 2, MOST)
    assert level.tokens(4_000, 0, prompts=1) < level.tokens(4_000, 0, prompts=50)
    assert level.tokens(64, 0, prompts=64) < MOST


class Linear:
    """A step takes its tokens' number of seconds, and a start."""

    def __init__(self, start: float) -> None:
        self.start = start

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        assert num_seqs == 1
        return self.start + num_tokens


def test_the_last_stage_waits_for_the_first_chunk() -> None:
    """n chunks on s stages take n + s - 1 times: the largest size that is near the best."""
    for stages in (1, 2, 3, 4, 8):
        for length in (512, 4_096, 20_000):
            sizes = [MOST >> halved for halved in range(8) if MOST >> halved >= LEAST]
            totals = {c: (-(-length // c) + stages - 1) * (30.0 + c) for c in sizes}
            best = max(c for c in sizes if totals[c] <= SLACK * min(totals.values()))
            found = LevelChunks(Linear(30.0), stages, MOST).tokens(length, 0)
            assert best <= found < best + TILE


def test_no_chunk_exceeds_a_step() -> None:
    """Though the most tokens of a step are no multiple of the tile."""
    assert LevelChunks(Linear(1e6), 1, 110).tokens(10_000, 0) == 110


class Counted(Linear):
    """Each token of a chunk attends to itself and to all before it."""

    def seconds(
        self, num_tokens: int, num_seqs: int, context_tokens: int, attended: int | None = None
    ) -> float:
        assert attended == sum(range(context_tokens - num_tokens + 1, context_tokens + 1))
        self.behind.add(context_tokens - num_tokens)
        return self.start + attended

    def __init__(self, start: float) -> None:
        super().__init__(start)
        self.behind = set[int]()


def test_a_chunk_is_predicted_with_the_tokens_before_it() -> None:
    """The level is that of a chunk in the middle; this one is as long as fits under it."""
    cost = Counted(1e4)
    early, late = (LevelChunks(cost, 2, MOST).tokens(3_000, done) for done in (100, 2_900))
    assert cost.behind == {1_500, 100, 2_900}
    assert early > late
