"""Write a preset of Quire as a folder of random weights, for starts with weights on disk.

    python benchmarks/peers/write_checkpoint.py qwen3-0.6b FOLDER

Runs in the environment of Transformers; every engine here but llama.cpp reads the folder. Its
tokenizer is a byte-level BPE with as many entries as the preset's vocabulary, made up.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import tokenizers
import torch
import transformers
from peer import config_of


def write(preset: str, folder: Path) -> None:
    """Write config.json, the weights in bfloat16, and tokenizer.json."""
    config = config_of(preset)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # as the model's own
    tokenizer(config["vocab_size"]).save(str(folder / "tokenizer.json"))


def tokenizer(vocab_size: int) -> tokenizers.Tokenizer:
    """All bytes, then pairs of them, then triples, each with its merge."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    pairs = itertools.product(alphabet, alphabet)
    triples = itertools.product(map("".join, itertools.product(alphabet, alphabet)), alphabet)
    merges = list(itertools.islice(itertools.chain(pairs, triples), vocab_size - len(alphabet)))
    vocab = {token: i for i, token in enumerate([*alphabet, *map("".join, merges)])}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    return made


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]))
