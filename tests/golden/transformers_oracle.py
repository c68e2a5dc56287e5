"""What Transformers answers, and prompts at which no rounding can change its answer."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.golden.tiny_models import VOCAB_SIZE

MIN_GAP = 1e-3
"""Transformers' best two logits are never closer than this along a golden sequence."""
PROMPT_LEN = 70
NUM_TOKENS = 12


@dataclass
class Golden:
    """A prompt and what Transformers computed for it."""

    prompt: list[int]
    tokens: list[int]
    """Prompt and output."""
    logits: Tensor
    """Float32, of every token but the last."""

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]


def find_golden(model: PreTrainedModel, count: int = NUM_TOKENS) -> Golden:
    """The first of some random prompts that keeps the best two logits apart."""
    for seed in range(count):
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randint(2, VOCAB_SIZE, (PROMPT_LEN,), generator=generator).tolist()
        tokens = greedy(model, prompt, count)
        with torch.no_grad():
            logits = model(torch.tensor([tokens[:-1]])).logits[0]
        best = logits[PROMPT_LEN - 1 :].topk(2).values
        if float((best[:, 0] - best[:, 1]).min()) > MIN_GAP:
            return Golden(prompt, tokens, logits)
    raise AssertionError("no prompt keeps the best two logits apart")


def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """`prompt` and the `count` tokens that Transformers generates greedily."""
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
        )
    return out[0].tolist()
