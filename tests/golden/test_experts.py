"""Experts from files that keep them packed, and on ranks: the answers of one plain engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from quire import LLM, SamplingParams
from quire.models import pack_cache
from quire.ops.rank_group import RankGroup
from tests.golden.harness import Sequence
from tests.golden.ranks import run_ranks
from tests.golden.test_lora import make_model
from tests.golden.test_tensor_parallel import build, prompts
from tests.golden.tiny_models import make_tiny

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)
OFFLOADED = 6e-5


@pytest.mark.parametrize("quantization", [None, pytest.param("int8", marks=pytest.mark.slow)])
def test_packed_experts_come_back(
    quantization: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the pack cache, and from a mapped file."""
    monkeypatch.setattr(pack_cache, "SMALLEST_BYTES", 0)
    monkeypatch.setenv("QUIRE_CACHE_DIR", str(tmp_path / "cache"))
    make_model("qwen2-moe", tmp_path / "model")

    def start(**fields: object) -> tuple[object, LLM]:
        flags = {"quantization": quantization, "num_gpu_blocks_override": 32} | fields
        with LLM(str(tmp_path / "model"), **flags) as llm:  # type: ignore[arg-type]
            prompt = {"prompt_token_ids": list(range(3, 30))}
            [output] = llm.generate([prompt], PARAMS, use_tqdm=False)
            return (output.outputs[0].token_ids, output.outputs[0].logprobs), llm

    plain, _ = start(pack_cache_bytes=0)
    assert start()[0] == plain
    [file] = (tmp_path / "cache" / "packed").iterdir()
    written = file.stat().st_ino
    assert start()[0] == plain
    assert file.stat().st_ino == written  # read, not packed again
    moved, llm = start(cpu_offload_gb=OFFLOADED)
    assert moved == plain
    assert llm.facts["offloaded_weight_bytes"]


@pytest.mark.parametrize("packing", [None, "int8"])
def test_ranks_agree_in_bfloat16(packing: str | None, tmp_path: Path) -> None:
    """Their parts of an expert are added in float32, and rounded once."""
    make_tiny("qwen2-moe", seed=3, folder=tmp_path)

    def generate(group: RankGroup | None) -> list[Sequence]:
        return build(tmp_path, group, torch.bfloat16, packing).generate(prompts(), 4)

    whole, ranks = generate(None), run_ranks(2, generate)
    for expected, first, second in zip(whole, *ranks, strict=True):
        one, two = (torch.cat(s.logits) for s in (first, second))
        assert torch.equal(one, two)
        assert first.tokens == second.tokens == expected.tokens
