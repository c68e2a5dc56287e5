"""Calibration samples: from a text file, or written by the model itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.core.errors import ConfigError
from quire.text.files import read_text, split_documents

if TYPE_CHECKING:
    from quire.text.tokenizers.tokenizer import Tokenizer

SELF = "self"
_FIELDS = ("text", "prompt", "question", "content", "story", "instruction")
"""Possible names of the text field in a JSON line; the first one present is used."""
_LISTS = ("messages", "conversations", "turns")


def own_samples(model: str, count: int, length: int, **fields: Any) -> list[list[int]]:
    """Return `count` texts that the model writes without a prompt, with seeds 0, 1 …

    A model's own texts resemble its later inputs, and no data set is needed (LLM-QAT, Liu et al.
    2023).
    """
    from quire.core.sampling_params import SamplingParams
    from quire.frontend.llm import LLM

    with LLM(model, **fields) as llm:
        tokenizer = llm.get_tokenizer()
        begin = next(
            token
            for token in (tokenizer.bos_token_id, *llm.model_config.eos_token_ids, 0)
            if token is not None
        )
        most = min(length, llm.resolved.config.scheduler.max_model_len) - 1
        params = [
            SamplingParams(temperature=1.0, top_p=1.0, top_k=0, max_tokens=most, seed=seed)
            for seed in range(count)
        ]
        prompts = [{"prompt_token_ids": [begin]} for _ in range(count)]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [[begin, *output.outputs[0].token_ids] for output in outputs]


def file_samples(path: Path, tokenizer: Tokenizer, count: int, length: int) -> list[list[int]]:
    """Return up to `count` pieces of at most `length` tokens, spread over a file's documents.

    The documents of a text file are separated by lines of `---`; in a .jsonl (or .jsonl.gz) file
    each line is one document.

    Raises:
        ConfigError: the file cannot be read or holds no text.
    """
    pieces: list[list[int]] = []
    for document in _documents(path):
        ids = tokenizer.encode(document)
        pieces += [ids[start : start + length] for start in range(0, len(ids), length)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    if not pieces:
        raise ConfigError(f"--calibration {path} holds no text.", param="--calibration")
    count = min(count, len(pieces))
    return [pieces[i * len(pieces) // count] for i in range(count)]


def _documents(path: Path) -> Iterator[str]:
    fix = f"Name a text file, a .jsonl file, or {SELF!r}."
    text = read_text(path, f"--calibration {path}", param="--calibration", fix=fix)
    if ".jsonl" not in path.suffixes:
        yield from split_documents(text)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield _text_of(path, number, line)


def _text_of(path: Path, number: int, line: str) -> str:
    """Return a line's text: a field in `_FIELDS`, or the joined texts of one in `_LISTS`."""
    try:
        fields = json.loads(line)
    except ValueError:
        fields = None
    if isinstance(fields, dict):
        for name in _FIELDS:
            if isinstance(fields.get(name), str):
                return str(fields[name])
        for name in _LISTS:
            if isinstance(fields.get(name), list):
                parts = [p if isinstance(p, str) else _said(p) for p in fields[name]]
                return "\n".join(parts)
    raise ConfigError(
        f"--calibration {path}, line {number}: no JSON object with one of "
        f"{', '.join((*_FIELDS, *_LISTS))}.",
        param="--calibration",
    )


def _said(message: Any) -> str:
    """Return the text of a chat message in either of the two common formats."""
    if not isinstance(message, dict):
        return ""
    return str(message.get("content") or message.get("value") or "")
