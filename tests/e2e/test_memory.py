"""Memory while a model is loaded: no second copy of its weights, whatever they are packed into."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.make_checkpoint import stored_shapes, write_safetensors, write_tokenizer
from quire.checkpoint.presets import preset_config

OVERHEAD = 128 * 2**20
"""Bytes of Python and buffers. A second copy of the weights would be another 128 MiB."""
_LOAD = """
import json, sys
from quire.bench.machine import peak_rss_bytes
from quire.frontend.llm import LLM

llm = LLM(sys.argv[1], quantization=json.loads(sys.argv[2]), dtype="bfloat16", max_model_len=256,
          num_gpu_blocks_override=32)
llm.generate([{"prompt_token_ids": [1, 2, 3]}], use_tqdm=False)
kept = llm.facts["weight_bytes"] + llm.facts["kv_cache_bytes"]
print(json.dumps([peak_rss_bytes(), kept]))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four of opt-125m's layers."""
    folder = tmp_path_factory.mktemp("opt")
    config = preset_config("opt-125m")
    config["num_hidden_layers"] = 4
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", stored_shapes(config))
    write_tokenizer(folder / "tokenizer.json", config["vocab_size"])
    return folder


def test_loading_takes_little_beside_the_weights(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path))
    for quantization in (None, None, "int4"):  # packed, then found packed; and smaller than stored
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, checkpoint, json.dumps(quantization)],
            check=True, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        peak, kept = json.loads(done.stdout.splitlines()[-1])
        assert peak - kept <= OVERHEAD, quantization
