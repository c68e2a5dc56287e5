"""Every real vocabulary in the shared folder, and small ones made on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from quire.text.tokenizers.hf_tokenizer import HFTokenizer, TokenizerFiles
from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer

SHARED = Path(__file__).resolve().parents[4] / "shared"

REAL = {
    "tokenizer.json": "models/tinystories-656k",
    "sentencepiece": "tokenizers/llama2-spm/tokenizer.model",
    "vocab+merges": "tokenizers/gpt2",
    "gguf sentencepiece": "models/stories260k/stories260K.gguf",
    "gguf gpt-2": "tokenizers/parity/ggml-vocab-gpt-2.gguf",
    "gguf starcoder": "tokenizers/parity/ggml-vocab-starcoder.gguf",
    "gguf phi-3": "tokenizers/parity/ggml-vocab-phi-3.gguf",
}


@cache
def real_tokenizer(name: str) -> Tokenizer:
    if not SHARED.is_dir():
        pytest.skip("the shared folder is not beside this checkout")
    return load_tokenizer(SHARED / REAL[name])


def byte_tokenizer(*special: str, chat_template: str | None = None) -> HFTokenizer:
    """A byte-level vocabulary without merges; `special` get the ids from 256 on."""
    vocabulary = {CHAR_OF_BYTE[byte]: byte for byte in range(256)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    roles = dict(zip(("bos_token", "eos_token"), special, strict=False))
    templates = {} if chat_template is None else {"default": chat_template}
    return HFTokenizer(TokenizerFiles(backend, roles, templates))
