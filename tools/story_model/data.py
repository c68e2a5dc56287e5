"""Turns stories into a tokenizer and into packed rows of token ids."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tools.story_model.chat import Sample, make_sample
from tools.story_model.grammar import USUAL, Mix

BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
SYSTEM, USER, ASSISTANT, END = "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIALS = (PAD, BOS, EOS, SYSTEM, USER, ASSISTANT, END)

# The model knows no tools: it reads a call as its own text and what the tool returned as the user's.
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{%- set role = 'user' if message['role'] == 'tool' else message['role'] -%}"
    "{%- if role not in ['system', 'user', 'assistant'] -%}"
    "{{- raise_exception('Unknown role: ' + role) -}}"
    "{%- endif -%}"
    "{{- '<|' + role + '|>' + ((message['content'] or '') | trim) -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{{- call['function']['name'] + ' ' + call['function']['arguments'] | string -}}"
    "{%- endfor -%}"
    "{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

Ids = NDArray[np.int16]


def token_id(tokenizer: Tokenizer, token: str) -> int:
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"the tokenizer has no {token}")
    return int(found)


@dataclass(frozen=True)
class Rows:
    """Packed documents: ``ids`` and, for each position, whether it is a token to learn."""

    ids: Ids
    learn: NDArray[np.bool_]

    def __len__(self) -> int:
        return int(self.ids.shape[0])


def samples(seed: int, count: int, *, held_out: bool) -> Iterator[Sample]:
    rng = Random(seed)
    for _ in range(count):
        yield make_sample(rng, held_out=held_out)


def train_tokenizer(seed: int, count: int, vocab: int) -> Tokenizer:
    """A byte-level BPE: any text encodes, and decodes to exactly the same text."""

    def texts() -> Iterator[str]:
        for sample in samples(seed, count, held_out=False):
            yield sample.plain or "\n".join(text for _, text in sample.turns)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single=f"{BOS} $A",
            pair=f"{BOS} $A {BOS}:1 $B:1",
            special_tokens=[(BOS, token_id(tokenizer, BOS))],
        ),
    ])  # fmt: skip
    return tokenizer


def _documents(tokenizer: Tokenizer, batch: list[Sample]) -> Iterator[tuple[list[int], list[bool]]]:
    """Ids of each sample as the chat template renders it; only what the model says is learned."""
    pieces = [text for s in batch for text in ([s.plain] if s.plain else [t for _, t in s.turns])]
    encoded = iter(tokenizer.encode_batch_fast(pieces, add_special_tokens=False))
    bos, eos, end = (token_id(tokenizer, token) for token in (BOS, EOS, END))
    for sample in batch:
        ids, learn = [bos], [False]
        if sample.plain:
            ids += [*next(encoded).ids, eos]
            learn += [True] * (len(ids) - 1)
        for role, _ in sample.turns:
            turn = [*next(encoded).ids, end]
            ids += [token_id(tokenizer, f"<|{role}|>"), *turn]
            learn += [False] + [role == "assistant"] * len(turn)
        yield ids, learn


def pack(
    tokenizer: Tokenizer,
    seed: int,
    rows: int,
    length: int,
    *,
    held_out: bool,
    mix: Mix = USUAL,
) -> Rows:
    """``rows`` rows of whole documents; a document longer than a row is left out."""
    rng = Random(seed)
    pad = token_id(tokenizer, PAD)
    ids = np.full((rows, length), pad, dtype=np.int16)
    learn = np.zeros((rows, length), dtype=np.bool_)
    waiting: list[tuple[list[int], list[bool]]] = []
    for row in range(rows):
        used = 0
        while True:
            if len(waiting) < 256:
                batch = [make_sample(rng, held_out=held_out, mix=mix) for _ in range(1024)]
                waiting += [d for d in _documents(tokenizer, batch) if len(d[0]) <= length]
            # The oldest document that fits keeps the mix; the look-ahead keeps padding low.
            fit = next((i for i in range(256) if used + len(waiting[i][0]) <= length), None)
            if fit is None:
                break
            document, flags = waiting.pop(fit)
            ids[row, used : used + len(document)] = document
            learn[row, used : used + len(document)] = flags
            used += len(document)
    return Rows(ids, learn)
