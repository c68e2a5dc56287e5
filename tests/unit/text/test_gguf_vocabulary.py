"""gguf_vocabulary.py: a tokenizer read back from a GGUF file cuts texts as the original does."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from quire.checkpoint.gguf_writer import GGUFWriter
from quire.core.errors import UnsupportedModelError
from quire.text.tokenizers.gguf_vocabulary import tokenizer_metadata
from quire.text.tokenizers.token_bytes import CHAR_OF_BYTE
from quire.text.tokenizers.tokenizer import load_tokenizer

ASSETS = Path(__file__).resolve().parents[3] / "src" / "quire" / "assets"
TEXTS = [
    "Once upon a time, there was a little girl named Lily. She didn't know 1234567 things!",
    "  two  spaces\n\nand\ttabs \r\n end  ",
    "Größe, 北京, 한국어, 🙂👍🏽 e\u0301",
    "def f(x):\n    return x**2  # ok",
    "",
    " a",
]


@pytest.mark.parametrize(
    "name", ["story", "models/tinystories-656k", "tokenizers/llama2-spm/tokenizer.model",
             "tokenizers/gpt2", "tokenizers/parity/ggml-vocab-phi-3.gguf"]
)  # fmt: skip
def test_round_trip(name: str, shared_dir: Path, tmp_path: Path) -> None:
    path = ASSETS / name if name == "story" else shared_dir / name
    original = load_tokenizer(path)
    keys = tokenizer_metadata(path, original.vocab_size + 3)
    with GGUFWriter(tmp_path / "m.gguf", keys, []):
        pass
    copy = load_tokenizer(tmp_path / "m.gguf")
    assert copy.bos_token_id == original.bos_token_id
    assert copy.eos_token_id == original.eos_token_id
    assert copy.chat_templates == original.chat_templates
    assert copy.all_special_ids == original.all_special_ids
    for text in TEXTS:
        ids = original.encode(text)
        assert copy.encode(text) == ids, text
        assert copy.decode(ids) == original.decode(ids)
        assert [copy.token_bytes(id_) for id_ in ids] == [original.token_bytes(id_) for id_ in ids]


def test_a_way_of_cutting_without_a_name_is_refused(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE({CHAR_OF_BYTE[b]: b for b in range(256)}, []))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("x", "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModelError, match="no name in GGUF"):
        tokenizer_metadata(tmp_path, 256)
