"""Complaints about memory, and about starting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.bars.bar import Seen
from benchmarks.complaints.scenario import Scenario, engine, seen
from quire.bench.startup import sample, start_child
from quire.core.errors import QuireError
from quire.explain.fit import fit
from quire.resolve.arguments import EngineArgs
from quire.system.hardware import detect

GIB = 2**30
MODEL = "opt-125m"


_OFFLOADED = """
import json
from collections import Counter
from pathlib import Path
from quire import LLM

llm = LLM({model!r}, load_format="dummy", dtype="bfloat16", cpu_offload_gb={asked})
llm.generate([[5] * 8], use_tqdm=False)
sizes = Counter()  # of files without a name that are mapped, by inode
for line in Path("/proc/self/maps").read_text().splitlines():
    addresses, _, _, _, inode, *name = line.split(maxsplit=5)
    if name and name[0].endswith("(deleted)") and ".so" not in name[0]:
        first, last = (int(end, 16) for end in addresses.split("-"))
        sizes[inode] += last - first
notes = [note for note in llm.resolved.notes if "offload" in note]
print(json.dumps([max(sizes.values()), notes]))
"""


def offloaded(repetitions: int) -> Seen:
    """17062: bytes of the mapped file, over those that were asked for; the log names the way."""
    asked = 0.1
    with tempfile.TemporaryDirectory() as folder:
        code = _OFFLOADED.format(model=MODEL, asked=asked)
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env=os.environ | {"QUIRE_CACHE_DIR": folder},
        )  # fmt: skip
    size, notes = json.loads(done.stdout.splitlines()[-1])
    if not notes or "file" not in notes[0]:
        raise QuireError(f"The log does not say where the weights are: {notes}.")
    return seen([size / (asked * GIB)], note=notes[0])


def planned_blocks(repetitions: int) -> Seen:
    """6623: blocks that `quire plan` tells of two configurations, and those that they have."""
    apart, told = [], []
    for dtype in ("auto", "int8"):
        fields = {
            "load_format": "dummy", "dtype": "bfloat16", "kv_cache_dtype": dtype,
            "kv_cache_memory_bytes": 2**28,
        }  # fmt: skip
        plan = fit(EngineArgs(MODEL, **fields), detect(), None)
        told.append([plan.num_blocks, plan.kv_bytes_per_token])
        with engine(MODEL, **fields) as llm:
            apart.append(float(abs(int(llm.facts["num_blocks"]) - plan.num_blocks)))
    return seen(apart, blocks_and_bytes_per_token=told)


def later_starts(repetitions: int) -> Seen:
    """19398: seconds that reading weights takes in a later start, over the first one's."""
    program = Path(__file__).parents[1] / "make_checkpoint.py"
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        model, kept = Path(folder) / "model", Path(folder) / "cache"
        subprocess.run([sys.executable, program, MODEL, model], check=True, stdout=sys.stderr)
        args = asdict(EngineArgs(str(model), dtype="bfloat16"))
        payload = json.dumps(args | {"input_len": 16})
        start_child(payload, QUIRE_CACHE_DIR=str(Path(folder) / "warm-up"))
        for repetition in range(repetitions):
            where = str(kept / str(repetition))
            starts = [
                sample(*start_child(payload, QUIRE_CACHE_DIR=where))["phases"]["load_weights"]
                for _ in range(2)
            ]
            ratios.append(starts[1] / starts[0])
    return seen(ratios)


SCENARIOS = (
    Scenario(
        17062, "which CPU-offload memory", "bytes kept outside over those asked for, 0.1 GiB",
        1.05, offloaded, at_most=True,
    ),
    Scenario(
        6623, "Llava gets few KV blocks", "blocks by which `quire plan` is wrong, two types", 0,
        planned_blocks, "blocks", at_most=True, without="Llava: models take text",
    ),
    Scenario(
        19398, "first load slow every time", "weights of a later start / of the first", 0.5,
        later_starts, at_most=True,
    ),
)  # fmt: skip
