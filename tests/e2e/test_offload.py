"""--cpu-offload-gb: the memory that it frees, as the system counts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

OFFLOADED = 0.125
_RUN = """
import json, sys
from pathlib import Path
from quire.frontend.llm import LLM

llm = LLM("gpt2", load_format="dummy", dtype="bfloat16", max_model_len=128, num_threads=1,
          num_gpu_blocks_override=32, cpu_offload_gb=float(sys.argv[1]))
[output] = llm.generate([{"prompt_token_ids": [1, 2, 3]}], use_tqdm=False)
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps({
    "tokens": list(output.outputs[0].token_ids),
    "anonymous": int(status["RssAnon"].split()[0]) * 1024,
    "offloaded": llm.facts["offloaded_weight_bytes"],
    "formula": llm.facts["num_blocks_formula"],
}))
"""


def run(share: float) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(share)], check=True, capture_output=True, text=True,
        timeout=120,
    )  # fmt: skip
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="counts memory in /proc")
def test_the_memory_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    plain, moved = run(0.0), run(OFFLOADED)
    assert moved["tokens"] == plain["tokens"]
    asked, offloaded = OFFLOADED * 2**30, moved["offloaded"]
    assert isinstance(offloaded, int)
    assert 0.9 * asked <= offloaded <= 1.05 * asked
    freed = plain["anonymous"] - moved["anonymous"]  # type: ignore[operator]
    assert freed >= 0.9 * offloaded
