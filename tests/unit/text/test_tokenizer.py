"""tokenizer.py, hf_tokenizer.py, tokenizer_files.py: opening and using a tokenizer."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers
from transformers import AutoTokenizer, GPT2Tokenizer

from quire.core.errors import CheckpointError, InvalidRequestError
from quire.text.tokenizers.sentencepiece import split_off
from quire.text.tokenizers.tokenizer import Tokenizer, load_tokenizer
from tests.unit.text.vocabularies import REAL, byte_tokenizer, real_tokenizer

SAMPLES = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces ",
    "naïve café 🦙🏽‍🚀 ¿qué?\n\n\ttabs",
    "I'm we'll THEY'RE 123456 $%^",
    "कखग 我想在apple工作1314151天～",
]


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("text", SAMPLES)
def test_round_trip(shared_dir: Path, name: str, text: str) -> None:
    tokenizer = real_tokenizer(name)
    ids = tokenizer.encode(text)
    assert all(0 <= id_ < tokenizer.vocab_size for id_ in ids)
    if name != "tokenizer.json":  # that one has no token for most characters
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("name", REAL)
def test_ids_and_tokens_correspond(shared_dir: Path, name: str) -> None:
    tokenizer = real_tokenizer(name)
    for id_ in range(0, tokenizer.vocab_size, 37):
        token = tokenizer.id_to_token(id_)
        assert token is not None
        assert tokenizer.token_to_id(token) == id_
    for id_ in (-1, tokenizer.vocab_size, 1 << 40):
        assert tokenizer.id_to_token(id_) is None
        assert tokenizer.token_bytes(id_) == b""


def test_tokenizer_json_equals_transformers(shared_dir: Path) -> None:
    folder = shared_dir / "models" / "tinystories-656k"
    oracle = AutoTokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.bos_token_id == oracle.bos_token_id == 1
    assert tokenizer.eos_token_id == oracle.eos_token_id == 2
    assert tokenizer.all_special_ids == frozenset(oracle.all_special_ids)
    for text in ["Once upon a time", 'She said: "No!"', "a<|end_story|>"]:
        ids = tokenizer.encode(text)
        assert ids == oracle.encode(text)
        assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, False) == oracle.decode(ids)


def test_special_tokens_match_as_written(tmp_path: Path) -> None:
    """Where a file says `normalized`, a special token is a special token all the same."""
    backend = byte_tokenizer()._backend
    backend.normalizer = normalizers.Prepend("_")
    backend.add_special_tokens([AddedToken("<s>", normalized=True, rstrip=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a<s> b") == [*b"_a", 256, *b"_b"]
    assert tokenizer.id_to_token(256) == "<s>"


def test_special_tokens_are_added_at_once(tmp_path: Path) -> None:
    """The library builds its search anew in each call: a thousand calls would take seconds."""
    backend = byte_tokenizer()._backend
    backend.add_special_tokens([AddedToken(f"<{i}>", normalized=True) for i in range(20)])
    backend.save(str(tmp_path / "tokenizer.json"))
    calls: list[str] = []

    def note(frame: object, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__.startswith("add_"):
            calls.append(function.__name__)

    sys.setprofile(note)
    try:
        ids = load_tokenizer(tmp_path).encode_with_controls("<3>", [(0, 3)])
        split_off(backend, [(f"[{i}]", 2 + i % 3) for i in range(20)])
    finally:
        sys.setprofile(None)
    assert ids == [259]
    assert 0 < len(calls) < 10, calls
    assert backend.encode("<3>[1][2]").ids == [
        259,
        *[backend.token_to_id(t) for t in ("[1]", "[2]")],
    ]


def test_vocab_and_merges_equal_transformers(shared_dir: Path) -> None:
    folder = shared_dir / "tokenizers" / "gpt2"
    oracle = GPT2Tokenizer.from_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == 50257
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == 50256
    for text in [*SAMPLES, "<|endoftext|>x", "!!!??? 1st 2nd\r\n"]:
        assert tokenizer.encode(text) == oracle.encode(text), text


def test_one_vocabulary_from_two_files(shared_dir: Path) -> None:
    first, second = real_tokenizer("vocab+merges"), real_tokenizer("gguf gpt-2")
    for text in SAMPLES:
        assert first.encode(text) == second.encode(text)


def test_special_tokens_around_a_text(shared_dir: Path) -> None:
    tokenizer = real_tokenizer("sentencepiece")
    assert tokenizer.encode("Hello") == [1, 15043]
    assert tokenizer.encode("Hello", add_special_tokens=False) == [15043]
    assert real_tokenizer("vocab+merges").encode("Hello") == [15496]


def test_special_tokens_in_a_text(shared_dir: Path) -> None:
    tokenizer = real_tokenizer("sentencepiece")
    assert tokenizer.encode("<s>Hello</s>", False) == [1, 15043, 2]
    plain = tokenizer.encode_with_controls("<s>Hello</s>", [])
    assert not {1, 2} & set(plain)
    assert tokenizer.decode(plain) == "<s>Hello</s>"
    assert tokenizer.encode_with_controls("<s>Hello</s>", [(8, 12)])[-1] == 2
    assert tokenizer.encode_with_controls("<s>Hello</s>", [(0, 3), (8, 12)]) == [1, 15043, 2]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_controls_change_nothing_where_all_are_controls(text: str) -> None:
    tokenizer = byte_tokenizer("<s>", "</s>")
    written = f"<s>{text}</s>"
    controls = [(0, 3), (len(written) - 4, len(written))]
    ids = tokenizer.encode_with_controls(written, controls)
    assert ids == [256, *text.encode(), 257]


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="position 1"):
        byte_tokenizer().encode("a\ud800")


def write_tokenizer(folder: Path, **settings: object) -> None:
    byte_tokenizer("<s>", "</s>")._backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def test_roles_come_from_either_file(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, eos_token={"content": "</s>", "lstrip": False})
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "<s>"}')
    assert load_tokenizer(tmp_path).special_tokens == {"bos_token": "<s>", "eos_token": "<s>"}
    write_tokenizer(tmp_path, eos_token={"content": "</s>"}, added_tokens_decoder={})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (256, 257)


def test_chat_templates(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, chat_template="one")
    assert load_tokenizer(tmp_path).chat_template == "one"
    named = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "three"}]
    write_tokenizer(tmp_path, chat_template=named)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.chat_templates == {"default": "two", "tool_use": "three"}
    (tmp_path / "chat_template.jinja").write_text("four")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("five")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.chat_template == "four"
    assert tokenizer.chat_templates["rag"] == "five"
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template["rag"] == "five"
    write_tokenizer(tmp_path, chat_template=[{"name": "x"}])
    with pytest.raises(CheckpointError, match="lacks name or template"):
        load_tokenizer(tmp_path)


def test_chat_templates_that_cannot_be_read(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "additional_chat_templates" / "rag.jinja").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"rag\.jinja cannot be read: Is a directory\."):
        load_tokenizer(tmp_path)
    (tmp_path / "additional_chat_templates" / "rag.jinja").rmdir()
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read: 'utf-8'"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer_config.json", {"bos_token": "\ud800"}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"9": {"content": "\ud800"}}}),
        ("added_tokens.json", {"\ud800": 3}),
    ],
)
def test_an_added_token_that_is_no_text(name: str, content: object, tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"'\\ud800', which is not valid Unicode"):
        load_tokenizer(tmp_path)


def test_chat_template_of_a_processor(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.json").write_text('{"chat_template": "one"}')
    assert load_tokenizer(tmp_path).chat_template == "one"
    write_tokenizer(tmp_path, chat_template="two")
    assert load_tokenizer(tmp_path).chat_template == "two"
    (tmp_path / "preprocessor_config.json").write_text("{}")
    assert load_tokenizer(tmp_path).chat_template == "one"
    (tmp_path / "processor_config.json").write_text('{"chat_template": "three"}')
    assert load_tokenizer(tmp_path).chat_template == "three"


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no tokenizer .* --tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="vocab_size"):
        load_tokenizer(None)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "Nope"}}'])
def test_damaged_tokenizer_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"tokenizer.json cannot be read"):
        load_tokenizer(tmp_path)


def test_damaged_vocab_and_merges(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2}')
    with pytest.raises(CheckpointError, match=r"merges.txt cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("#version: 0.2\nab\n")
    with pytest.raises(CheckpointError, match="'ab', which is no pair"):
        load_tokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("a c\n")
    with pytest.raises(CheckpointError, match="do not belong together"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": "x"}')
    with pytest.raises(CheckpointError, match="gives a token no id"):
        load_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 0}')
    with pytest.raises(CheckpointError, match=r"vocab\.json: 'a' and 'ab' have the id 0"):
        load_tokenizer(tmp_path)


def test_a_tokenizer_json_whose_tokens_share_an_id(tmp_path: Path) -> None:
    """The library opens it, but not the copy that a chat needs."""
    byte_tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    pipeline = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = pipeline["model"]["vocab"]
    first, second = list(vocabulary)[:2]
    vocabulary[second] = vocabulary[first]
    (tmp_path / "tokenizer.json").write_text(json.dumps(pipeline))
    with pytest.raises(CheckpointError, match=r"tokenizer.json cannot be read: .* have the id"):
        load_tokenizer(tmp_path)


def test_settings_of_vocab_and_merges(tmp_path: Path, shared_dir: Path) -> None:
    """OPT's layout: GPT-2's files, and a beginning that is declared."""
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_dir / "tokenizers" / "gpt2" / name, tmp_path / name)
    added = {"50257": {"content": "</s>", "special": True}}
    settings = {"bos_token": "</s>", "add_bos_token": True, "added_tokens_decoder": added}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("Hello") == [50257, 15496]
    assert tokenizer.vocab_size == 50258
    (tmp_path / "tokenizer_config.json").write_text('{"add_prefix_space": true}')
    assert load_tokenizer(tmp_path).encode("Hello") == tokenizer.encode(" Hello")[1:]


_ADDED: list[tuple[dict[str, Any], dict[str, dict[str, Any]]]] = [
    ({"eos_token": "<|end|>"}, {}),
    ({"eos_token": "</s>"}, {"special_tokens_map.json": {"eos_token": "<|end|>"}}),
    ({"additional_special_tokens": ["<|user|>", "<|end|>"]}, {}),
    (
        {"extra_special_tokens": {"image_token": "<|user|>"}, "video_token": "<v>",
         "pad_token": "<pad>", "sep_token": "<sep>"},
        {},
    ),
    (
        {"pad_token": "<pad>", "extra_special_tokens": ["<|end|>"], "added_tokens_decoder": {
            "3": {"content": "<|user|>", "special": True},
            "4": {"content": " tool", "special": False, "normalized": True, "lstrip": True},
        }},
        {"special_tokens_map.json": {"additional_special_tokens": ["<|end|>"]}},
    ),
    ({"eos_token": "<|end|>"}, {"added_tokens.json": {"<|user|>": 4, "<|end|>": 3, "tool": 5}}),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "files"), _ADDED)
def test_tokens_that_only_other_files_add(
    settings: dict[str, Any], files: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    """Transformers adds them behind the vocabulary of tokenizer.json, in this order."""
    backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "</s>": 1, "a": 2}, []))
    backend.add_special_tokens(["<s>", "</s>"])
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    for name, content in (files | {"tokenizer_config.json": settings}).items():
        (tmp_path / name).write_text(json.dumps(content))
    oracle, tokenizer = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    assert tokenizer.vocab_size == len(oracle) > 3
    assert tokenizer.eos_token_id == oracle.eos_token_id
    assert tokenizer.special_tokens == oracle.special_tokens_map  # for chat templates
    for text in ("a<|user|><v>a toola<|end|>", "<pad>aa<sep> tool </s>"):
        assert tokenizer.encode(text) == oracle.encode(text)


def test_added_tokens_decode_as_the_normalizer_finds_them(tmp_path: Path) -> None:
    backend = tokenizers.Tokenizer(models.BPE({"▁": 0, "a": 1}, []))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    stages = [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(stages)
    backend.add_tokens([tokenizers.AddedToken("tool", normalized=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    for text in ("a tool", "tool a"):
        ids = tokenizer.encode(text)
        assert 2 in ids
        assert tokenizer.decode(ids) == backend.decode(ids) == text


def test_a_text_that_the_library_fails_on(tmp_path: Path) -> None:
    """Of an added token the normalizer leaves nothing, which is found within a character."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0}, []))
    backend.normalizer = normalizers.Strip()
    backend.add_tokens([tokenizers.AddedToken("  ", normalized=True)])
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    with pytest.raises(InvalidRequestError, match="tokenizer fails on this text"):
        tokenizer.encode("aé")
    assert tokenizer.encode("a", add_special_tokens=False)


def test_an_added_token_with_an_id_that_it_cannot_have(
    tmp_path: Path, shared_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(shared_dir / "tokenizers" / "gpt2" / name, tmp_path / name)
    (tmp_path / "added_tokens.json").write_text('{"<|end|>": 60000}')
    assert load_tokenizer(tmp_path).token_to_id("<|end|>") == 50257
    assert "'<|end|>' the id 60000; behind its vocabulary it gets 50257" in caplog.text
    caplog.clear()
    table = {f"<|{i}|>": 60000 + i for i in range(99)}
    (tmp_path / "added_tokens.json").write_text(json.dumps(table))
    load_tokenizer(tmp_path)
    assert len(caplog.records) == 6
    assert "94 more tokens get other ids" in caplog.text
    (tmp_path / "added_tokens.json").write_text('{"<|end|>": "x"}')
    with pytest.raises(CheckpointError, match=r"gives '<\|end\|>' the id 'x'"):
        load_tokenizer(tmp_path)


def test_embedded_story_tokenizer() -> None:
    from quire.checkpoint.source import resolve
    from quire.core.errors import ModelNotFoundError

    try:
        source = resolve("embedded")
    except ModelNotFoundError:
        pytest.skip("the embedded model is not built in this checkout")
    tokenizer: Tokenizer = load_tokenizer(source.tokenizer_path)
    assert tokenizer.decode(tokenizer.encode("Once upon a time 🦙")) == "Once upon a time 🦙"
