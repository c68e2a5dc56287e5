"""Held-out figures of the shipped models, and a check against transformers.

Run ``python -m tools.story_model.evaluate --assets src/quire/assets``.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.story_model.data import BOS, Rows, pack, token_id
from tools.story_model.model import ModelSpec, StoryLlama, count
from tools.story_model.train import DRAFT, IGNORE, LAST, MAIN, batch_of

HELD_OUT_SEED = 7_000_000
PROMPTS = (
    "Tell me a story.",
    "Write a short story about a brave fox and a lost key.",
    "tell me a story about an axolotl named Zibby who lives on the moon",
)


@dataclass(frozen=True)
class Score:
    """Loss in nats per learned token, the same in bits per byte, and greedy choices."""

    loss: float
    bits_per_byte: float
    right: float
    choices: torch.Tensor


def load(folder: Path, spec: ModelSpec) -> StoryLlama:
    """The shipped weights in the model that was trained."""
    model = StoryLlama(spec).eval()
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({k.removeprefix("model."): v.float() for k, v in tensors.items()})
    return model


def score(model: StoryLlama, rows: Rows, bos: int, bytes_of: np.ndarray) -> Score:
    loss = right = learned = size = 0.0
    picked: list[torch.Tensor] = []
    for at in range(0, len(rows), 8):
        ids, targets, mask = batch_of(rows, slice(at, at + 8), bos, torch.device("cpu"))
        logits = model(ids, mask).flatten(0, 1)
        flat = targets.flatten()
        known = flat != IGNORE
        loss += F.cross_entropy(logits, flat, ignore_index=IGNORE, reduction="sum").item()
        choice = logits.argmax(dim=-1)[known]
        right += (choice == flat[known]).sum().item()
        learned += int(known.sum())
        size += float(bytes_of[flat[known].numpy()].sum())
        picked.append(choice)
    return Score(loss / learned, loss / math.log(2) / size, right / learned, torch.cat(picked))


def token_bytes(tokenizer: Tokenizer) -> np.ndarray:
    """How many bytes of text each token stands for; special tokens stand for none."""
    special = {t.content for t in tokenizer.get_added_tokens_decoder().values()}
    sizes = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        # The byte-level alphabet writes each byte as one character.
        sizes[index] = 0 if token in special else len(token)
    return sizes


def worst_difference(folder: Path, model: StoryLlama) -> float:
    """The largest logit difference to transformers on one conversation."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    other: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPTS[1]}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    return float((other(ids).logits - model(ids)).abs().max())


def write(folder: Path, prompt: str, *, sample: bool) -> str:
    """The model's own answer, with the shipped generation settings or greedily."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    chat = [{"role": "user", "content": prompt}]
    text = str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
    inputs = tokenizer(text, add_special_tokens=False, return_tensors="pt")
    start = len(inputs["input_ids"][0])
    if not sample:
        model.generation_config.update(do_sample=False, temperature=None, top_p=None)
    output = model.generate(**inputs)
    return str(tokenizer.decode(output[0, start:], skip_special_tokens=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--assets", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=60, help="held-out rows of 640 tokens")
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer = Tokenizer.from_file(str(options.assets / "story" / "tokenizer.json"))
    bos = token_id(tokenizer, BOS)
    rows = pack(tokenizer, HELD_OUT_SEED, options.rows, 640, held_out=True, mix=LAST)
    sizes = token_bytes(tokenizer)
    scores: list[Score] = []
    with torch.inference_mode():
        for name, spec in (("story", MAIN), ("story-draft", DRAFT)):
            folder = options.assets / name
            model = load(folder, spec)
            result = score(model, rows, bos, sizes)
            scores.append(result)
            figures = {
                "model": name,
                "parameters": count(model),
                "held_out_tokens": int(result.choices.numel()),
                "loss": round(result.loss, 4),
                "perplexity": round(math.exp(result.loss), 4),
                "bits_per_byte": round(result.bits_per_byte, 4),
                "greedy_right": round(result.right, 4),
                "worst_logit_difference": worst_difference(folder, model),
            }
            print(json.dumps(figures))
        agree = (scores[0].choices == scores[1].choices).float().mean().item()
        print(json.dumps({"draft_agrees_with_main": round(agree, 4)}))
        for prompt in PROMPTS:
            for sample in (False, True):
                text = write(options.assets / "story", prompt, sample=sample)
                print(f"\n--- {prompt} ({'sampled' if sample else 'greedy'})\n{text}")


if __name__ == "__main__":
    main()
