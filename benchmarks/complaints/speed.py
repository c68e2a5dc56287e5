"""Complaints about how fast it is: beside others, at a format's bits, on this machine."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import cycle, islice, permutations
from pathlib import Path

import numpy as np

from benchmarks.bars.bar import Against, Floor, Load, Seen, Setup, Subject
from benchmarks.bars.measure import Bench, run_module
from benchmarks.bars.pool import Pool
from benchmarks.complaints.scenario import Scenario, batch, engine, median, seen, speed
from quire.bench.contest import driver_home
from quire.bench.kernels.case import noise
from quire.core.dtypes import BFLOAT16
from quire.core.errors import QuireError
from quire.core.outputs import RequestOutput
from quire.ops.metadata import AttentionMetadata, AttentionRules, KVCache
from quire.ops.native.attention import AttentionKernels
from quire.ops.native.kernels import Pool as Threads
from quire.ops.native.kernels import native_kernels
from quire.system.hardware import detect

OPT, OPT_FP16, GPT2 = Setup("opt-125m"), Setup("opt-125m", dtype="float16"), Setup("gpt2")
ONE = Load(1, 128, 64)
GRID = [(count, context) for count in (1, 2, 8, 32) for context in (64, 512, 2048)]
"""Sequences of decode attention, and their contexts."""
DECIDED, KNOWN = 0.05, 0.02
"""Widths of a median's 95 % interval from which a point of the grid decides nothing, and below
which it is known."""
TURNS, PASSES, MOST_SECONDS = 12, 20, 90.0
"""Of each point in a pass over the grid; least passes; on a busy machine no median is known."""


def subject(wanted: Subject) -> Callable[[int], Seen]:
    """What the CPU's bars measure in the same way (`benchmarks/cpu_bars.py`), peers being those
    that are installed beside Quire."""

    def measure(repetitions: int) -> Seen:
        peers = [wanted] if isinstance(wanted, Against) else []
        pythons = {name: sys.executable for name in ("transformers", "torch") if find_spec(name)}
        with driver_home() as home:
            pool = Pool(pythons, home, Path(tempfile.gettempdir()), peers)
            try:
                return Bench(pool, repetitions, _no_files).measure(wanted)
            finally:
                pool.stop()

    return measure


def _no_files(preset: str) -> Path:
    raise QuireError(f"{preset} is wanted as files.")


def threads(repetitions: int) -> Seen:
    """12153: threads by default, of the cores."""
    with engine() as llm:
        return seen([llm.resolved.config.num_threads / detect().cores])


def verification(repetitions: int, quantization: str | None) -> Seen:
    """8370: a step that verifies four drafts over one without drafts, one stream of qwen3-0.6b.

    Both read 164 tokens of context in the mean."""
    config = {"method": "ngram", "num_speculative_tokens": 4, "synthetic_acceptance_rate": 1.0}
    common = {"max_num_seqs": 1, "max_model_len": 512, "quantization": quantization}
    found, drafts = [], []
    with (
        engine("qwen3-0.6b", **common) as plain,
        engine("qwen3-0.6b", **common, speculative_config=config) as drafting,
    ):
        for repetition in range(-1, repetitions):  # the first warms up
            [one] = batch(plain, 1, 144, 41, repetition + 1)
            [some] = batch(drafting, 1, 64, 201, repetition + 1)
            if repetition >= 0:
                found.append(_step_seconds(some) / _step_seconds(one))
                drafts.append(some.metrics.num_draft_tokens / _steps(some))
    return seen(found, drafts_per_step=median(drafts))


def _steps(output: RequestOutput) -> int:
    """Steps after the one that ended the prompt."""
    return len(output.outputs[0].token_ids) - 1 - output.metrics.num_accepted_tokens


def _step_seconds(output: RequestOutput) -> float:
    times = output.metrics
    return (times.last_token_time - times.first_token_time) / _steps(output)


def more_streams(repetitions: int) -> Seen:
    """15018: how much all streams together gain from 1 to 2 to 8 of them, at least, in Q4_K."""
    found = []
    with engine(quantization="q4_k", enable_prefix_caching=False) as llm:
        batch(llm, 8, 16, 8)
        for repetition in range(repetitions):
            total = [
                speed(batch(llm, n, 16, 32, repetition), 16, 32)["decode_tok_s"] for n in (1, 2, 8)
            ]
            found.append(min(total[1] / total[0], total[2] / total[1]))
    return seen(found)


def formats(repetitions: int) -> Seen:
    """15809: how far apart AWQ and GPTQ are, in turns."""
    ratios = []
    with engine(quantization="awq") as awq, engine(quantization="gptq") as gptq:
        for llm in (awq, gptq):
            batch(llm, 1, 16, 8)
        for repetition in range(3 * repetitions):
            turn = (awq, gptq) if repetition % 2 else (gptq, awq)
            took = {
                id(llm): speed(batch(llm, 1, 16, 48, repetition), 16, 48)["tpot_ms"] for llm in turn
            }
            ratios.append(took[id(awq)] / took[id(gptq)])
    middle = sorted(ratios)[len(ratios) // 2]
    return seen([abs(1.0 - middle)], ratios=ratios)


def marked_rows(repetitions: int) -> Seen:
    """18884: rows of the kernel benchmark whose times spread by more than 5 %, and are not marked;
    arguments rotate, and repetitions are in turns."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        words = "--model gpt2 --op norm gemm --rows 1 16 --dtype float32"
        run_module("quire", "bench", "kernels", *words.split(), f"--json={file}")
        rows = json.loads(file.read_text())
    wrong = sum((row["spread"] > 0.05) != row["unstable"] for row in rows)
    return seen([float(wrong)], rows=len(rows), unstable=sum(row["unstable"] for row in rows))


def variants(repetitions: int) -> Seen:
    """13141: the better of both variants of decode attention (threads share a sequence's keys, or
    do not) over the one that the rule takes, at the worst of a grid.

    Half of the passes choose the better variant. The others compare it with the rule, by the median
    of their ratios: a maximum of two noisy times would always win. A pass visits all points, so
    that what else runs for a tenth of a second disturbs one ratio of a point, not all of them.
    """
    ops = AttentionKernels(native_kernels(), Threads(detect().cores))
    rules = AttentionRules(64**-0.5)
    wake = partial(ops.paged_attention, *_decode((64,) * 8, 4), rules)
    even = [((context,) * count, kv) for kv in (4, 1) for count, context in GRID]
    points = {}
    for lengths, kv_heads in [*even, ((2048,) + (64,) * 7, 4), ((2048,) + (64,) * 7, 1)]:
        name = f"{len(lengths)} x {lengths[0]}, {kv_heads} kv heads"
        call = partial(ops.paged_attention, *_decode(lengths, kv_heads), rules)
        points[name if len(set(lengths)) == 1 else f"uneven {name}"] = call, _Passes()
    end = time.monotonic() + MOST_SECONDS
    while True:
        for call, passes in points.values():
            passes.add(call, wake)
        grid = {name: passes.of_best() for name, (_, passes) in points.items() if passes.enough}
        if grid and (all(high - low < KNOWN for _, low, high in grid.values())
                     or time.monotonic() > end):  # fmt: skip
            break
    undecided = [name for name, (_, low, high) in grid.items() if high - low > DECIDED]
    known = [middle for name, (middle, _, _) in grid.items() if name not in undecided]
    if not known:
        raise QuireError("The machine is too busy: no point of the grid is decided.")
    return seen([min(known)], grid=grid, undecided=undecided)


class _Passes:
    """The median seconds of both variants, and of the rule's choice (None), in each pass."""

    def __init__(self) -> None:
        self._seconds: dict[bool | None, list[float]] = {None: [], True: [], False: []}

    def add(self, call: Callable[..., np.ndarray], wake: Callable[[], np.ndarray]) -> None:
        """Run all in turns. `wake` wakes all threads before each, as products do in an engine: they
        sleep after a call that one thread computes."""
        times: dict[bool | None, list[float]] = {split: [] for split in self._seconds}
        for order in islice(cycle(permutations(times)), TURNS):
            for split in order:
                wake()
                begin = time.perf_counter()
                call(split=split)
                times[split].append(time.perf_counter() - begin)
        for split, seconds in times.items():
            self._seconds[split].append(median(seconds))

    @property
    def enough(self) -> bool:
        return len(self._seconds[None]) >= PASSES

    def of_best(self) -> tuple[float, float, float]:
        """Return the better variant's time over the rule's: the median and its 95 % interval."""
        rule, shared, apart = self._seconds.values()
        sooner = median([s / a for s, a in zip(shared[::2], apart[::2], strict=True)]) < 1.0
        other = shared if sooner else apart
        ratios = sorted(b / r for b, r in zip(other[1::2], rule[1::2], strict=True))
        middle, reach = len(ratios) // 2, round(0.98 * len(ratios) ** 0.5)
        low, high = max(0, middle - reach), min(middle + reach, len(ratios) - 1)
        return round(ratios[middle], 3), round(ratios[low], 3), round(ratios[high], 3)


def _decode(
    lengths: tuple[int, ...], kv_heads: int
) -> tuple[np.ndarray, KVCache, AttentionMetadata]:
    """A token each of sequences with these contexts, 8 heads of 64."""
    count, each = len(lengths), -(-max(lengths) // 16)
    random = np.random.default_rng(count)
    shape = (count * each, kv_heads, 16, 64)
    k, v, q = (noise(random, s, BFLOAT16) for s in (shape, shape, (count, 8, 64)))
    tables = random.permutation(count * each).reshape(count, each).astype(np.int32)
    ends = np.array(lengths, np.int32) - 1
    meta = AttentionMetadata(
        query_start_loc=np.arange(count + 1, dtype=np.int32),
        seq_lens=ends + 1,
        block_tables=tables,
        slot_mapping=tables[np.arange(count), ends // 16].astype(np.int64) * 16 + ends % 16,
        num_seqs=count,
        block_size=16,
    )
    return q, KVCache(k, v), meta


SCENARIOS = (
    Scenario(
        4702, "Hugging Face beats vLLM on OPT-125m", "batch of 32 / Transformers' generate", 3.0,
        subject(Against(OPT, Load(32, 64, 64), "batch", (("transformers", OPT),))),
    ),
    Scenario(
        8866, "slower than Gradio for one prompt", "one stream's decode / Transformers", 1.0,
        subject(Against(OPT, ONE, "decode", (("transformers", OPT),))),
    ),
    Scenario(
        20174, "prefill attention slower than Hugging Face",
        "time of a 128-token GPT-2 prefill / dense SDPA layers", 1.05,
        subject(Against(GPT2, Load(1, 128, 2), "prefill", (("torch", GPT2),), as_time=True)),
        at_most=True,
    ),
    *(
        Scenario(
            8370, "speculative scoring slow", f"verifying 4 tokens in {name} / one decode step",
            1.5, partial(verification, quantization=quantization), at_most=True,
        )
        for name, quantization in (("bfloat16", None), ("int8", "int8"))
    ),
    Scenario(12153, "CPU at 0.1 tok/s", "threads by default, of the cores", 1.0, threads, "%"),
    Scenario(
        12153, "CPU at 0.1 tok/s", "decode, of what the memory allows, bfloat16", 0.7,
        subject(Floor(OPT, ONE)), "%",
    ),
    Scenario(
        12153, "CPU at 0.1 tok/s", "decode, of what the memory allows, float16", 0.7,
        subject(Floor(OPT_FP16, ONE)), "%",
    ),
    Scenario(
        15018, "GGUF: 19 tok/s alone, 0.4 with two",
        "all streams together, from 1 to 2 to 8 in Q4_K, at least", 1.0, more_streams,
    ),
    Scenario(
        15809, "AWQ slow, GPTQ not", "AWQ's time a token and GPTQ's, apart by", 0.05, formats, "%",
        at_most=True,
    ),
    Scenario(
        13141, "paged-attention rule ignores hardware",
        "the better variant / the one that the rule takes, worst of a grid", 0.95, variants, "%",
    ),
    Scenario(
        18884, "custom kernel versus PyTorch timing unstable",
        "rows whose times spread by more than 5 % and are not marked", 0, marked_rows, "",
        at_most=True,
    ),
)  # fmt: skip
