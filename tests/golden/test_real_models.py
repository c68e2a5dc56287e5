"""Trained models, against Transformers and against text that is known to come out."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from quire import LLM, SamplingParams
from quire.ops.providers import load_ops
from quire.text.tokenizers.tokenizer import load_tokenizer
from tests.golden.harness import PagedModel, load_decoder
from tests.golden.transformers_oracle import greedy

OPS = load_ops("cpu")
PROMPT = "Once upon a time"


def test_tinystories_200_greedy_tokens(shared_dir: Path) -> None:
    folder = shared_dir / "models" / "tinystories-656k"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    prompt = load_tokenizer(folder).encode(PROMPT)
    expected = greedy(model, prompt, 200)
    paged = PagedModel(load_decoder(folder, 512, OPS), OPS, block_size=16, num_blocks=32)
    (sequence,) = paged.generate([prompt], 200)
    assert sequence.tokens == expected


def test_stories260k_tells_its_story(shared_dir: Path) -> None:
    file = shared_dir / "models" / "stories260k" / "stories260K.gguf"
    tokenizer = load_tokenizer(file)
    prompt = tokenizer.encode(PROMPT)
    paged = PagedModel(load_decoder(file, 512, OPS), OPS, block_size=16, num_blocks=32)
    (sequence,) = paged.generate([prompt], 60)
    assert tokenizer.decode(sequence.tokens).startswith(
        PROMPT + ", there was a little girl named Lily. She loved to play outside in the park. "
        "One day, she saw a big, red ball."
    )


def test_tinystories_through_the_python_api(shared_dir: Path) -> None:
    folder = shared_dir / "models" / "tinystories-656k"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
    with LLM(model=str(folder), max_num_batched_tokens=64) as llm:
        (output,) = llm.generate(PROMPT, params, use_tqdm=False)
    expected = greedy(model, output.prompt_token_ids, 200)
    assert output.prompt_token_ids + output.outputs[0].token_ids == expected
