"""Adapters against PEFT on Transformers: logits and greedy tokens, in batches of all kinds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from quire import LLM, LoRARequest, SamplingParams
from tests.golden.harness import is_planned
from tests.golden.tiny_experts import EXPERT_MODELS
from tests.golden.tiny_models import (
    FEW_KINDS,
    TINY_MODELS,
    VOCAB_SIZE,
    make_tiny,
    of_each_kind,
    of_each_type,
    save_byte_tokenizer,
)

# PEFT's own: it asks Transformers for something deprecated, and corrects fan_in_fan_out of Conv1D.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning", "ignore:.*fan_in_fan_out.*:UserWarning"
)
NUM_TOKENS = 10
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LATENT = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"]
TARGETS = {
    **{tiny.model_type: ATTENTION for tiny in EXPERT_MODELS.values()},
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "starcoder2": ["q_proj", "k_proj", "v_proj", "o_proj", "c_fc", "c_proj"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "phi": ["q_proj", "k_proj", "v_proj", "dense", "fc1", "fc2"],
    "jais2": [*ATTENTION, "up_proj", "down_proj"],
    "apertus": [*ATTENTION, "up_proj", "down_proj"],
    "gpt_bigcode": ["c_attn", "c_proj", "c_fc"],
    "gpt_neo": ["q_proj", "k_proj", "v_proj", "out_proj", "c_fc", "c_proj"],
    "gptj": ["q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out"],
    "falcon": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
    "nanochat": [*ATTENTION, "fc1", "fc2"],
    "opt": ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
    "glm": [*ATTENTION, "gate_up_proj", "down_proj"],
    "glm4": [*ATTENTION, "gate_up_proj", "down_proj"],
    "granitemoehybrid": ["q_proj", "k_proj", "v_proj", "o_proj", "input_linear", "output_linear"],
    "arcee": [*ATTENTION, "up_proj", "down_proj"],
    "nemotron": [*ATTENTION, "up_proj", "down_proj"],
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "deepseek_v2": ["q_proj", *LATENT[2:]],
    **dict.fromkeys(("deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu", "mistral4"), LATENT),
}
"""By model type, where they are not `ALL`."""
RECURRENT = {
    "lfm2": ["in_proj", "out_proj", "q_proj", "k_proj", "v_proj", "w1", "w2", "w3"],
    "lfm3": ["in_proj", *ATTENTION, "g_proj", "w1", "w2", "w3"],
    "qwen3_5": [
        *(f"in_proj_{part}" for part in ("qkv", "z", "b", "a")),
        "out_proj",
        *ATTENTION,
        "gate_proj",
        "up_proj",
        "down_proj",
    ],
    "granite4-hybrid": ["in_proj", "out_proj", *ATTENTION, "input_linear", "output_linear"],
    "falcon-h1": ["in_proj", *ATTENTION, "gate_proj", "up_proj", "down_proj"],
    "bamba": ["in_proj", "out_proj", *ATTENTION, "gate_proj", "up_proj", "down_proj"],
    "mamba2": ["in_proj"],
}
"""Mamba layers without `out_proj` where PEFT refuses it."""
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=0)
DRAW = torch.Generator().manual_seed(0)
PROMPTS = [
    torch.randint(2, VOCAB_SIZE, (length,), generator=DRAW).tolist() for length in (3, 21, 40, 70)
]
FLAGS: dict[str, Any] = {
    "enable_lora": True, "max_loras": 3, "num_gpu_blocks_override": 128, "num_threads": 1,
}  # fmt: skip


def make_model(name: str, folder: Path) -> None:
    """A tiny model, and a tokenizer of bytes."""
    make_tiny(name, 3, folder)
    save_byte_tokenizer(folder)


def make_adapter(model: Path, folder: Path, targets: list[str], seed: int, **fields: Any) -> Any:
    """An adapter that changes a lot, saved by PEFT; the adapted model."""
    torch.manual_seed(seed)
    config = LoraConfig(
        **{"r": 4, "lora_alpha": 6, "init_lora_weights": False, "task_type": "CAUSAL_LM"} | fields,
        target_modules=targets,
    )
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model), config)
    adapted.save_pretrained(folder)
    return adapted.eval()


def expected(adapted: Any, prompt: list[int], answer: list[int]) -> tuple[list[int], torch.Tensor]:
    """Return the likeliest token after the prompt and each token of the answer but the last, and
    their log-probabilities. The answer is greedy if it equals these tokens."""
    assert len(answer) == NUM_TOKENS
    with torch.no_grad():
        logits = adapted(input_ids=torch.tensor([prompt + answer[:-1]])).logits[0]
    logprobs, tokens = logits[len(prompt) - 1 :].log_softmax(-1).max(-1)
    return tokens.tolist(), logprobs


def answers(
    llm: LLM, prompts: list[list[int]], adapters: list[LoRARequest | None]
) -> list[tuple[list[int], list[float]]]:
    """Each prompt's tokens, and their log-probabilities."""
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], GREEDY, False, lora_request=adapters
    )
    given = []
    for output in outputs:
        [completion] = output.outputs
        logprobs = [next(iter(position.values())).logprob for position in completion.logprobs]
        given.append((list(completion.token_ids), logprobs))
    return given


MODELS = [name.removesuffix("-longrope") for name in [*of_each_type(), *RECURRENT]]
"""Transformers chooses among longrope's factors by the prompt's length."""


@pytest.mark.parametrize(
    "name", of_each_kind(MODELS, "phi3", "qwen3_5", "falcon-h1", kinds=FEW_KINDS)
)
def test_it_is_pefts_answer(name: str, tmp_path: Path) -> None:
    make_model(name, tmp_path / "model")
    targets = RECURRENT.get(name) or TARGETS.get(TINY_MODELS[name].model_type, ALL)
    adapted = make_adapter(tmp_path / "model", tmp_path / "a", targets, 1)
    with LLM(str(tmp_path / "model"), **FLAGS) as llm:
        assert is_planned(llm.facts)
        adapter = LoRARequest("a", 1, str(tmp_path / "a"))
        given = answers(llm, PROMPTS[1:], [adapter] * 3)
    for prompt, (tokens, logprobs) in zip(PROMPTS[1:], given, strict=True):
        wanted_tokens, wanted_logprobs = expected(adapted, prompt, tokens)
        assert tokens == wanted_tokens
        torch.testing.assert_close(
            torch.tensor(logprobs), wanted_logprobs, rtol=0, atol=1e-4, check_dtype=False
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and adapters of several ranks, targets and scales."""
    folder = tmp_path_factory.mktemp("lora")
    make_model("llama", folder / "model")
    make_adapter(folder / "model", folder / "a", ALL, 1)
    make_adapter(folder / "model", folder / "b", ["q_proj", "v_proj"], 2, r=9, use_rslora=True)
    patterns = {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"layers.1.mlp.up_proj": 3}}
    make_adapter(folder / "model", folder / "c", ["down_proj", "up_proj"], 3, **patterns)
    return folder


def requests(folder: Path) -> list[LoRARequest]:
    return [LoRARequest(name, i, str(folder / name)) for i, name in enumerate("abc", 1)]


@pytest.mark.parametrize("number", [1, 2])
def test_ranks_scales_and_patterns(folder: Path, number: int) -> None:
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(folder / "model")
    adapter = requests(folder)[number]
    adapted = PeftModel.from_pretrained(base, adapter.lora_path).eval()
    with LLM(str(folder / "model"), **FLAGS) as llm:
        [(tokens, _)] = answers(llm, PROMPTS[2:3], [adapter])
    assert tokens == expected(adapted, PROMPTS[2], tokens)[0]


@pytest.mark.parametrize(
    "flags",
    [
        {"ops": "reference"},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"quantization": "int4_g32"},
        {"async_scheduling": True},
        {"num_scheduler_steps": 3},
    ],
    ids=str,
)
def test_rows_are_alone_in_any_company(folder: Path, flags: dict[str, Any]) -> None:
    """Mixed batches give each row its own bits, alone and eager alike, and base rows those of an
    engine without adapters."""
    adapters: list[LoRARequest | None] = [*requests(folder), None]
    model = str(folder / "model")
    with LLM(model, **FLAGS | flags) as llm:
        alone = [answers(llm, [p], [a])[0] for p, a in zip(PROMPTS, adapters, strict=True)]
        # Those from before are in the prefix cache; every prompt with every adapter.
        prompts = [prompt for prompt in PROMPTS for _ in adapters]
        together = answers(llm, prompts, adapters * len(PROMPTS))
        assert [together[5 * i] for i in range(4)] == alone
    with LLM(model, **FLAGS | flags | {"enforce_eager": True}) as llm:
        assert answers(llm, prompts, adapters * len(PROMPTS)) == together
    with LLM(model, num_gpu_blocks_override=128, num_threads=1, **flags) as llm:
        assert answers(llm, PROMPTS, [None] * 4) == together[3::4]
    differ = {tuple(tokens) for tokens, _ in together[:4]}
    assert len(differ) == 4, "the adapters change nothing"


def test_few_at_a_time_and_few_in_memory(folder: Path) -> None:
    """One adapter a step, one in memory, few blocks: the same answers, one after the other."""
    adapters: list[LoRARequest | None] = [*requests(folder), None]
    model = str(folder / "model")
    prompts = [prompt for prompt in PROMPTS for _ in adapters]
    with LLM(model, **FLAGS) as llm:
        wanted = answers(llm, prompts, adapters * 4)
    small = {"max_loras": 1, "num_gpu_blocks_override": 12, "swap_space": 0.01}
    with LLM(model, **FLAGS | small) as llm:
        assert answers(llm, prompts, adapters * 4) == wanted
        assert len(llm.call("list_loras")) == 1
    reference = {"max_num_batched_tokens": 64, "enable_prefix_caching": False}
    with LLM(model, **FLAGS | reference | {"max_loras": 2, "max_cpu_loras": 3}) as llm:
        assert answers(llm, prompts, adapters * 4) == wanted


def test_it_is_the_merged_model(folder: Path, tmp_path: Path) -> None:
    """An adapter gives what its model gives with the adapter merged into the weights."""
    adapted = make_adapter(folder / "model", tmp_path / "a", ALL, 1)
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    shutil.copy(folder / "model" / "tokenizer.json", tmp_path / "merged")
    with LLM(str(folder / "model"), **FLAGS) as llm:
        given = answers(llm, PROMPTS, [LoRARequest("a", 1, str(tmp_path / "a"))] * 4)
    with LLM(str(tmp_path / "merged"), num_gpu_blocks_override=128, num_threads=1) as llm:
        merged = answers(llm, PROMPTS, [None] * 4)
    # Compared up to the first token where rounding may have tipped the scales.
    for (tokens, logprobs), (other, other_logprobs) in zip(given, merged, strict=True):
        assert tokens[:8] == other[:8]
        assert logprobs[:8] == pytest.approx(other_logprobs[:8], rel=0, abs=1e-4)
