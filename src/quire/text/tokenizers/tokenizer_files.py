"""A model's tokenizer files in Hugging Face's layout.

| file | content |
|---|---|
| tokenizer.json | the whole pipeline |
| tekken.json, tiktoken.model | byte-level BPE by ranks |
| tokenizer.model | a sentencepiece vocabulary |
| vocab.json, merges.txt | a byte-level BPE vocabulary |
| vocab.txt | a WordPiece vocabulary |
| tokenizer_config.json, special_tokens_map.json | roles of special tokens |
| the same two, added_tokens.json | tokens behind the vocabulary |
| tokenizer_config.json, chat_template.jinja, additional_chat_templates/*.jinja | chat templates |
| chat_template.json, processor_config.json | the chat template of a model that reads images |
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from quire.checkpoint.json_file import read_json
from quire.core.errors import CheckpointError
from quire.text.tokenizers import sentencepiece
from quire.text.tokenizers.added_tokens import Added, optional_json, read_added
from quire.text.tokenizers.byte_level import bpe_backend, read_merges
from quire.text.tokenizers.hf_tokenizer import HFTokenizer, TokenizerFiles
from quire.text.tokenizers.post_processor import surround
from quire.text.tokenizers.ranked import FILES as RANKED
from quire.text.tokenizers.ranked import ranked_backend
from quire.text.tokenizers.tokenizer_json import check_ids, read_tokenizer_json


def load_files(path: Path) -> HFTokenizer:
    """Open the tokenizer in folder `path`, or the one whose vocabulary is file `path`.

    Raises:
        CheckpointError: there is none, or a file of it is damaged; names it.
    """
    folder = path if path.is_dir() else path.parent
    settings = optional_json(folder / "tokenizer_config.json")
    added = read_added(folder, settings)
    templates = chat_templates(folder, settings)
    path = _vocabulary_file(path)
    normalize = table = None
    if path.name == "vocab.json":
        backend = _vocab_and_merges(path, settings, added)
    elif path.name == "vocab.txt":
        backend = wordpiece_backend(path, settings, added.roles)
        added.add(backend)
    elif path.name in RANKED:
        backend = ranked_backend(path, settings, added, templates)
        added.add(backend)
    elif path.suffix == ".model":
        vocabulary = sentencepiece.read_vocabulary(path)
        newer = settings.get("legacy") is False
        if newer and settings.get("add_prefix_space") is False:
            vocabulary = replace(vocabulary, add_dummy_prefix=False)
        backend = _sentencepiece(vocabulary, settings, added)
        normalize = sentencepiece.text_normalizer(vocabulary, once=newer)
    else:
        backend, table = read_tokenizer_json(path)
        if table is not None and added.missing(backend):
            backend, table = tokenizers.Tokenizer.from_file(str(path)), None
        added.add(backend)
    return HFTokenizer(TokenizerFiles(backend, added.roles, templates, normalize, table=table))


def _vocabulary_file(path: Path) -> Path:
    candidates = ("tokenizer.json", *RANKED, "tokenizer.model", "vocab.json", "vocab.txt")
    if path.is_dir():
        found = next((path / name for name in candidates if (path / name).is_file()), None)
        if found is None:
            raise CheckpointError(
                f"{path.name} holds no tokenizer ({', '.join(candidates)}).",
                fix="Add the model's tokenizer files, or name a tokenizer with --tokenizer.",
                param="--tokenizer",
            )
        return found
    return path


def _vocab_and_merges(path: Path, settings: dict[str, Any], added: Added) -> tokenizers.Tokenizer:
    """GPT-2's layout; the roles gain "<|endoftext|>" where nothing else is said."""
    vocabulary = read_json(path)
    if not all(type(id_) is int and 0 <= id_ < 1 << 31 for id_ in vocabulary.values()):
        raise CheckpointError(f"{path.name} gives a token no id.", fix="Download it again.")
    try:
        check_ids(vocabulary)
    except ValueError as error:
        raise CheckpointError(f"{path.name}: {error}.", fix="Download it again.") from error
    kind = "qwen2" if str(settings.get("tokenizer_class")).startswith("Qwen2") else "gpt-2"
    merges = read_merges(path.with_name("merges.txt"))
    backend = bpe_backend(vocabulary, merges, kind, path.name)
    if kind == "gpt-2" and settings.get("add_prefix_space"):
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    if not added.roles and "<|endoftext|>" in vocabulary:
        ends = ("bos_token", "eos_token", "unk_token")
        added.roles.update(dict.fromkeys(ends, "<|endoftext|>"))
    added.add(backend)
    _surround(backend, settings, added.roles, starts_with_bos=False)
    return backend


def _sentencepiece(
    vocabulary: sentencepiece.Vocabulary, settings: dict[str, Any], added: Added
) -> tokenizers.Tokenizer:
    """Read a .model file; the roles gain the beginning and end that the file names."""
    for role, id_ in (("bos_token", vocabulary.bos_id), ("eos_token", vocabulary.eos_id)):
        if id_ < len(vocabulary.pieces):
            added.roles.setdefault(role, vocabulary.pieces[id_].text)
    backend = sentencepiece.sentencepiece_backend(vocabulary)
    added.add(backend)
    _surround(backend, settings, added.roles, starts_with_bos=True)
    return backend


def _surround(
    backend: tokenizers.Tokenizer,
    settings: dict[str, Any],
    roles: dict[str, str],
    *,
    starts_with_bos: bool,
) -> None:
    surround(
        backend,
        roles.get("bos_token") if settings.get("add_bos_token", starts_with_bos) else None,
        roles.get("eos_token") if settings.get("add_eos_token", False) else None,
    )


_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


def chat_templates(folder: Path, settings: dict[str, Any]) -> dict[str, str]:
    """Return name → source of every chat template; a .jinja file outranks tokenizer_config.json.

    The template of a processor for images outranks both. A model without one may have its template
    in the same file.
    """
    templates: dict[str, str] = {}
    declared = settings.get("chat_template")
    if isinstance(declared, str):
        templates["default"] = declared
    elif isinstance(declared, list):
        for entry in declared:
            match entry:
                case {"name": str(name), "template": str(template)}:
                    templates[name] = template
                case _:
                    raise CheckpointError(
                        "tokenizer_config.json: an entry of chat_template lacks name or template.",
                        fix="Correct the entry, or remove it.",
                    )
    for name in ("chat_templates", "additional_chat_templates"):
        for path in sorted((folder / name).glob("*.jinja")):
            templates[path.stem] = _text(path)
    single = folder / "chat_template.jinja"
    if single.is_file():
        templates["default"] = _text(single)
    processor = any((folder / name).is_file() for name in _PROCESSOR_FILES)
    for name in ("chat_template.json", "processor_config.json"):
        found = optional_json(folder / name).get("chat_template")
        if isinstance(found, str) and (processor or "default" not in templates):
            templates["default"] = found
    return templates


def _text(path: Path) -> str:
    """Return what a file holds; raises CheckpointError, which names it."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CheckpointError(
            f"{path.name} cannot be read: {reason}.", fix="Download or copy the file again."
        ) from error


_BERT_ROLES = {
    f"{role.lower()}_token": f"[{role}]" for role in ("UNK", "CLS", "SEP", "PAD", "MASK")
}


def wordpiece_backend(
    path: Path, settings: dict[str, Any], roles: dict[str, str]
) -> tokenizers.Tokenizer:
    """Return the tokenizer of vocab.txt; `roles` gains BERT's special tokens unless it has others.

    Args:
        settings: tokenizer_config.json; of it do_lower_case, strip_accents and
            tokenize_chinese_chars.

    Raises:
        CheckpointError: the file is no vocabulary, or lacks a special token.
    """
    lines = _text(path).splitlines()
    ids = {token: index for index, token in enumerate(lines)}
    named = _BERT_ROLES | roles
    cls, sep, unknown = (named[role] for role in ("cls_token", "sep_token", "unk_token"))
    if missing := [token for token in (cls, sep, unknown) if token not in ids]:
        raise CheckpointError(
            f"{path.name} lacks {', '.join(missing)}.", fix="Download or copy the file again."
        )
    backend = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case") is not False,
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars") is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing((sep, ids[sep]), (cls, ids[cls]))
    roles |= {role: token for role, token in named.items() if role in roles or token in ids}
    return backend
