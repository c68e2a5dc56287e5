"""Complaints about answers that change, and about what is computed for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import quire
from benchmarks.bars.bar import Seen
from benchmarks.complaints.scenario import Scenario, batch, differences, engine, seen
from quire import SamplingParams
from quire.bench.serving.workload import text_prompts
from quire.core.errors import QuireError
from quire.ops.isa import available_isas
from quire.system import env

STORY = "embedded"


def concurrency(repetitions: int) -> Seen:
    """9609: 200 prompts by 1, 8 and 32 at a time, every other one sampled."""
    prompts = text_prompts(200, 24, [0])
    params = [
        SamplingParams(temperature=float(i % 2), seed=i, max_tokens=16, ignore_eos=True)
        for i in range(len(prompts))
    ]
    answers = []
    for count in (1, 8, 32):
        with engine(STORY, max_num_seqs=count) as llm:
            answers.append(llm.generate(prompts, params, use_tqdm=False))
    return seen([float(differences(answers[0], other)) for other in answers[1:]])


def preemption(repetitions: int) -> Seen:
    """15253: a KV cache for five of sixteen sequences."""
    with engine(STORY) as llm:
        roomy = batch(llm, 16, 64, 64)
    found, counts = [], {}
    for mode in ("recompute", "swap"):
        fields = {"num_gpu_blocks_override": 40, "preemption_mode": mode, "swap_space": 0.1}
        with engine(STORY, **fields) as llm:
            tight = batch(llm, 16, 64, 64)
            counts[mode] = llm.stats.scheduler.num_preemptions
        found.append(float(differences(roomy, tight)))
    if not all(counts.values()):
        raise QuireError(f"Nobody was preempted: {counts}.")
    return seen(found, preemptions=counts)


def scaled_positions(repetitions: int) -> Seen:
    """18728: log-probabilities of short prompts, with dynamic scaling and without."""
    prompts = text_prompts(8, 64, [1])
    params = SamplingParams(temperature=0.0, max_tokens=16, logprobs=5, ignore_eos=True)
    found = []
    for overrides in (None, {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}):
        with engine(STORY, hf_overrides=overrides) as llm:
            answers = llm.generate(prompts, params, use_tqdm=False)
            found.append([answer.outputs[0].logprobs for answer in answers])
    return seen([float(sum(a != b for a, b in zip(*found, strict=True)))])


def static_warning(repetitions: int) -> Seen:
    """18728: whether static YaRN is told of, with its ways out."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    with engine(STORY, hf_overrides={"rope_scaling": yarn}) as llm:
        told = [note for note in llm.resolved.notes if note.startswith("YaRN")]
    return seen([float(len(told))], note=told[0] if told else None)


def instruction_sets(repetitions: int) -> Seen:
    """10592: the same text from each instruction set that this machine has, named in the log."""
    texts = []
    for isa in available_isas():
        command = [sys.executable, "-m", "quire", "complete", "Once upon a time"]
        done = subprocess.run(
            [*command, "--dtype", "float32", "--temperature", "0", "--max-tokens", "48"],
            env=env.of_child(QUIRE_CPU_ISA=isa), capture_output=True, text=True, check=True,
        )  # fmt: skip
        if isa not in done.stderr:
            raise QuireError(f"The log does not name {isa}.")
        texts.append(done.stdout)
    different = [float(text != texts[-1]) for text in texts]
    return seen(different, instruction_sets=list(available_isas()))


def forward_passes(repetitions: int) -> Seen:
    """12266: steps that were computed for a prompt and 16 tokens, over the 16 that it takes."""
    with engine(STORY) as llm:
        batch(llm, 1, 100, 16)
        return seen([llm.stats.scheduler.num_steps / 16])


def embeddings(repetitions: int) -> Seen:
    """20898: prompts as tensors against the same as tokens."""
    from safetensors.torch import load_file

    weights = Path(quire.__file__).parent / "assets" / "story" / "model.safetensors"
    table = load_file(weights)["model.embed_tokens.weight"].float()
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    with engine(STORY, enable_prompt_embeds=True, dtype="float32") as llm:
        ids = [llm.get_tokenizer().encode(text) for text in text_prompts(8, 12, [2])]
        as_tokens = llm.generate([{"prompt_token_ids": i} for i in ids], params, use_tqdm=False)
        as_rows = llm.generate([{"prompt_embeds": table[i]} for i in ids], params, use_tqdm=False)
    return seen([float(differences(as_tokens, as_rows))])


SCENARIOS = (
    Scenario(
        9609, "speculative decoding changes scores with concurrency",
        "answers that differ, 200 prompts by 1, 8 and 32 at a time", 0, concurrency, "",
        at_most=True, without="speculation, which is not there",
    ),
    Scenario(
        12266, "why prefill and decode run twice",
        "steps computed over steps needed, warm-up not counted", 1.0, forward_passes, at_most=True,
    ),
    Scenario(
        15253, "two versions are equal under preemption",
        "answers that differ when preempted, computed again or swapped", 0, preemption, "",
        at_most=True, without="speed: python benchmarks/kv_swap.py",
    ),
    Scenario(
        18728, "YaRN degrades short prompts",
        "short prompts whose log-probabilities dynamic scaling changes", 0, scaled_positions, "",
        at_most=True,
    ),
    Scenario(
        18728, "YaRN degrades short prompts", "warnings of static YaRN", 1, static_warning, "",
    ),
    Scenario(
        20898, "tensors as request input", "answers that differ, embeddings against tokens", 0,
        embeddings, "", at_most=True, without="images: models take text",
    ),
    Scenario(
        10592, "no FlashAttention on older hardware",
        "instruction sets whose text differs (float32)", 0, instruction_sets, "", at_most=True,
    ),
)  # fmt: skip
