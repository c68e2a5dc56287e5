"""Writes a model as a directory that transformers and Quire load."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from tools.story_model.data import (
    ASSISTANT,
    BOS,
    CHAT_TEMPLATE,
    END,
    EOS,
    PAD,
    SYSTEM,
    USER,
    token_id,
)
from tools.story_model.model import StoryLlama


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Readers see the old file or the new one, never half of one."""
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.chmod(0o644)  # save_file keeps its output private
    os.replace(part, path)


def _json(path: Path, value: dict[str, Any]) -> None:
    text = json.dumps(value, indent=2) + "\n"
    _replace(path, lambda part: part.write_text(text, encoding="utf-8"))


def export(model: StoryLlama, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    bos, eos, pad, end = (token_id(tokenizer, token) for token in (BOS, EOS, PAD, END))
    tensors = {
        f"model.{name}": weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.state_dict().items()
    }
    _json(folder / "config.json", model.spec.hf_config(bos, eos, pad))
    _json(
        folder / "generation_config.json",
        {
            "bos_token_id": bos,
            "eos_token_id": [eos, end],
            "pad_token_id": pad,
            "do_sample": True,
            "temperature": 0.7,
            "top_p": 0.9,
            "max_new_tokens": 512,
        },
    )
    _json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": PAD,
            "additional_special_tokens": [SYSTEM, USER, ASSISTANT, END],
            "add_bos_token": True,
            "clean_up_tokenization_spaces": False,
            "model_max_length": model.spec.context,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _replace(folder / "tokenizer.json", lambda part: tokenizer.save(str(part), pretty=False))
    _replace(
        folder / "model.safetensors",
        lambda part: save_file(tensors, str(part), metadata={"format": "pt"}),
    )
