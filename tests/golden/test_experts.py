"""Experts from files that keep them packed, and on ranks: the answers of one plain engine."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from quire import LLM, SamplingParams
from quire.models.weights import pack_cache
from quire.ops.rank_group import RankGroup
from quire.profile.layerwise import layerwise_profile
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


def test_a_profile_counts_the_rows_of_experts(tmp_path: Path) -> None:
    """They are those that Transformers' router sends to each expert."""
    make_model("qwen3-moe", tmp_path)
    prompt = list(range(3, 30))
    with LLM(str(tmp_path), num_gpu_blocks_override=32) as llm:
        with layerwise_profile(llm) as profile:
            [output] = llm.generate([{"prompt_token_ids": prompt}], PARAMS, use_tqdm=False)
        results = profile.results
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    computed = torch.tensor([[*prompt, *output.outputs[0].token_ids[:-1]]])
    with torch.no_grad():
        logits = model(computed, output_router_logits=True).router_logits[0]
    chosen = logits.topk(3).indices
    op = next(op for op in results.profile.ops if op.name == "moe")
    assert op.expert_rows == torch.bincount(chosen.flatten(), minlength=8).tolist()
    steps = [chosen[: len(prompt)], *chosen[len(prompt) :]]
    assert op.experts_used == sum(len(step.unique()) for step in steps)
    first, last = results.experts
    assert first.module == "layers.0.mlp.experts"
    assert first.peak == pytest.approx(max(op.expert_rows) * 8 / sum(op.expert_rows))
    assert op.expert_rows[first.busiest] == max(op.expert_rows)
    assert last.used == 3.0  # the last layer computes a prompt's last row alone
    table = io.StringIO()
    results.print_expert_table(table)
    assert table.getvalue().splitlines()[2].split()[:4] == [last.module, "3.0", "of", "8"]
