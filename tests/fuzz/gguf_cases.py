"""GGUF files that somebody has tampered with, a function of a seed."""

from __future__ import annotations

import math
import random
import struct
from dataclasses import dataclass, field
from typing import Any

HIDDEN, HEADS, KV_HEADS, WIDTH, VOCABULARY = 64, 4, 2, 96, 16
_LATENT = {
    "attention.kv_lora_rank": 32,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 32,
    "rope.dimension_count": 16,
    "expert_count": 2,
    "expert_used_count": 1,
    "expert_feed_forward_length": WIDTH,
    "expert_shared_count": 1,
}
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_BLOCKS = {0: (1, 4), 1: (1, 2), 30: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24),
           8: (32, 34), 20: (32, 18)}  # fmt: skip
"""Tensor type → values and bytes of a block."""
_COUNTS = (0, 1, 2, 255, 2**16, 2**24, 2**24 + 1, 2**31, 2**32, 2**63, 2**64 - 1)

MASK = 2**64 - 1
"""Of a 64-bit field."""


@dataclass
class Entry:
    key: bytes
    kind: int
    payload: bytes


@dataclass
class Tensor:
    name: bytes
    extents: list[int]
    kind: int
    offset: int
    rank: int | None = None


@dataclass
class File:
    entries: list[Entry]
    tensors: list[Tensor]
    data: bytes
    magic: bytes = b"GGUF"
    version: int = 3
    counts: dict[str, int] = field(default_factory=dict)

    def pack(self) -> bytes:
        tensors = self.counts.get("tensors", len(self.tensors))
        out = self.magic + struct.pack(
            "<IQQ", self.version, tensors, self.counts.get("entries", len(self.entries))
        )
        for entry in self.entries:
            out += text(entry.key) + struct.pack("<I", entry.kind) + entry.payload
        for t in self.tensors:
            rank = len(t.extents) if t.rank is None else t.rank
            extents = [extent & MASK for extent in t.extents]  # two faults may add up to more
            out += text(t.name) + struct.pack(f"<I{len(extents)}Q", rank, *extents)
            out += struct.pack("<IQ", t.kind & 0xFFFFFFFF, t.offset & MASK)
        return out + bytes(-len(out) % 32) + self.data


def text(content: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(content) if length is None else length) + content


def encoded(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return text(value if isinstance(value, bytes) else str(value).encode())
    if kind == _BOOL:
        return bytes([bool(value)])
    return struct.pack(_NUMBERS[kind], value)


def array(kind: int, values: list[Any], count: int | None = None) -> bytes:
    stated = len(values) if count is None else count
    return struct.pack("<IQ", kind, stated) + b"".join(encoded(kind, value) for value in values)


def sound_file(dice: random.Random) -> File:
    """A whole model of one layer with its tokenizer, its matrices in one of several types.

    One in four has latent attention and experts.
    """
    name = dice.choice((b"llama", b"llama", b"llama", b"deepseek2"))
    numbers = {
        "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": WIDTH,
        "block_count": 1, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
    }  # fmt: skip
    if name == b"deepseek2":
        numbers |= _LATENT
    entries = [Entry(b"general.architecture", _STRING, text(name))]
    entries += [Entry(name + f".{k}".encode(), 4, encoded(4, v)) for k, v in numbers.items()]
    entries += [
        Entry(name + b".attention.layer_norm_rms_epsilon", 6, encoded(6, 1e-5)),
        Entry(name + b".rope.freq_base", 6, encoded(6, 1e4)),
        Entry(b"general.alignment", 4, encoded(4, 32)),
        *_tokenizer(dice),
    ]
    kind = dice.choice(list(_BLOCKS))
    tensors, data = [], b""
    for name_, shape in (_shapes() if name == b"llama" else _latent_shapes()).items():
        stored = kind if len(shape) > 1 and "gate_inp" not in name_ else 0
        values, size = _BLOCKS[stored]
        tensors.append(Tensor(name_.encode(), shape[::-1], stored, len(data)))
        data += bytes(math.prod(shape) // values * size)
        data += bytes(-len(data) % 32)
    return File(entries, tensors, data)


def _tokenizer(dice: random.Random) -> list[Entry]:
    prefix = b"tokenizer.ggml."
    kind = dice.choice((b"llama", b"gpt2"))
    tokens = [b"<unk>", b"<s>", b"</s>", *(bytes([97 + i]) for i in range(VOCABULARY - 4)), b"ab"]
    return [
        Entry(prefix + b"model", _STRING, text(kind)),
        Entry(prefix + b"tokens", _ARRAY, array(_STRING, tokens)),
        Entry(prefix + b"scores", _ARRAY, array(6, [-float(i) for i in range(VOCABULARY)])),
        Entry(prefix + b"token_type", _ARRAY, array(5, [2, 3, 3] + [1] * (VOCABULARY - 3))),
        Entry(prefix + b"merges", _ARRAY, array(_STRING, [b"a b"])),
        Entry(prefix + b"bos_token_id", 4, encoded(4, 1)),
        Entry(prefix + b"eos_token_id", 4, encoded(4, 2)),
        Entry(prefix + b"add_bos_token", _BOOL, encoded(_BOOL, True)),
        Entry(b"tokenizer.chat_template", _STRING, text(b"{{ messages[0]['content'] }}")),
    ]


def _shapes() -> dict[str, list[int]]:
    kv = HIDDEN // HEADS * KV_HEADS
    return {
        "token_embd.weight": [VOCABULARY, HIDDEN],
        "output_norm.weight": [HIDDEN],
        "blk.0.attn_norm.weight": [HIDDEN],
        "blk.0.attn_q.weight": [HIDDEN, HIDDEN],
        "blk.0.attn_k.weight": [kv, HIDDEN],
        "blk.0.attn_v.weight": [kv, HIDDEN],
        "blk.0.attn_output.weight": [HIDDEN, HIDDEN],
        "blk.0.ffn_norm.weight": [HIDDEN],
        "blk.0.ffn_gate.weight": [WIDTH, HIDDEN],
        "blk.0.ffn_up.weight": [WIDTH, HIDDEN],
        "blk.0.ffn_down.weight": [HIDDEN, WIDTH],
    }


def _latent_shapes() -> dict[str, list[int]]:
    numbers = _LATENT
    rank, experts = numbers["attention.kv_lora_rank"], numbers["expert_count"]
    key, value = (numbers[f"attention.{part}_length_mla"] for part in ("key", "value"))
    rotated = numbers["rope.dimension_count"]
    layer = {
        "attn_norm": [HIDDEN],
        "attn_q": [HEADS * key, HIDDEN],
        "attn_kv_a_mqa": [rank + rotated, HIDDEN],
        "attn_kv_a_norm": [rank],
        "attn_k_b": [HEADS, rank, key - rotated],
        "attn_v_b": [HEADS, value, rank],
        "attn_output": [HIDDEN, HEADS * value],
        "ffn_norm": [HIDDEN],
        "ffn_gate_inp": [experts, HIDDEN],
        "ffn_gate_exps": [experts, WIDTH, HIDDEN],
        "ffn_up_exps": [experts, WIDTH, HIDDEN],
        "ffn_down_exps": [experts, HIDDEN, WIDTH],
        "ffn_gate_shexp": [WIDTH, HIDDEN],
        "ffn_up_shexp": [WIDTH, HIDDEN],
        "ffn_down_shexp": [HIDDEN, WIDTH],
    }
    top = {"token_embd.weight": [VOCABULARY, HIDDEN], "output_norm.weight": [HIDDEN]}
    return top | {f"blk.0.{name}.weight": shape for name, shape in layer.items()}


def tampered_gguf(dice: random.Random) -> bytes:
    """A file with one to three faults, though some make no difference to a reader."""
    file = sound_file(dice)
    how = dice.randrange(10)
    if how == 0:
        whole = file.pack()
        return whole[: dice.randrange(len(whole))]
    if how == 1:
        raw = bytearray(file.pack())
        head = len(raw) - len(file.data)
        for _ in range(dice.randint(1, 5)):
            raw[dice.randrange(head)] = dice.randrange(256)
        return bytes(raw)
    for _ in range(dice.randint(1, 3)):
        dice.choice((_tamper_entry, _tamper_entry, _tamper_tensor, _tamper_counts))(dice, file)
    return file.pack()


def _tamper_entry(dice: random.Random, file: File) -> None:
    at = dice.randrange(len(file.entries))
    entry = file.entries[at]
    how = dice.randrange(7)
    if how == 0:
        del file.entries[at]
    elif how == 1:
        file.entries.insert(at, entry)
    elif how == 2:
        entry.key = dice.choice(
            (b"", b"\xff\xfe", entry.key[:-1], b"general.alignment", b"x" * 999)
        )
    elif how == 3:
        entry.kind = dice.choice((*range(13), 13, 255, 2**32 - 1))
    elif how == 4:
        entry.payload = entry.payload[: dice.randrange(len(entry.payload) + 1)]
    else:
        entry.kind, entry.payload = _strange_value(dice)


def _strange_value(dice: random.Random) -> tuple[int, bytes]:
    how = dice.randrange(6)
    if how == 0:
        return _STRING, text(
            dice.choice((b"", b"\xff\x80", b"qwen2", b"a" * 500, "é".encode()[:1]))
        )
    if how == 1:
        return _STRING, text(b"abc", dice.choice(_COUNTS))
    if how == 2:
        depth = dice.choice((2, 4, 5, 300))
        return _ARRAY, struct.pack("<IQ", _ARRAY, 1) * depth + array(4, [1])
    if how == 3:
        kind = dice.choice((*_NUMBERS, _BOOL, _STRING, _ARRAY, 13))
        return _ARRAY, struct.pack("<IQ", kind, dice.choice(_COUNTS)) + bytes(dice.randrange(64))
    if how == 4:
        tokens = [bytes(dice.randrange(256) for _ in range(dice.randrange(4))) for _ in range(16)]
        return _ARRAY, array(_STRING, tokens)
    kind = dice.choice(list(_NUMBERS))
    size = struct.calcsize(_NUMBERS[kind])
    return kind, dice.choice(
        (bytes(size), b"\xff" * size, bytes(size - 1) + b"\x7f", b"\x01" * size)
    )


def _tamper_tensor(dice: random.Random, file: File) -> None:
    at = dice.randrange(len(file.tensors))
    tensor, other = file.tensors[at], dice.choice(file.tensors)
    how = dice.randrange(7)
    if how == 0:
        del file.tensors[at]
        if not file.tensors:
            file.tensors = [tensor]
    elif how == 1:
        tensor.name = dice.choice((other.name, b"", b"\xff", b"blk.999999.attn_q.weight", b"a" * 99,
                                   b"blk." + b"9" * 5000 + b".attn_q.weight"))  # fmt: skip
    elif how == 2:
        tensor.kind = dice.choice((*range(42), 255, 2**32 - 1))
    elif how == 3:
        tensor.offset = dice.choice((other.offset, tensor.offset + 1, tensor.offset + 32, *_COUNTS))
    elif how == 4:
        tensor.extents = [dice.choice((*_COUNTS, 32, 64)) for _ in range(dice.randint(0, 4))]
    elif how == 5:
        tensor.rank = dice.choice((0, 1, 3, 5, 255, 2**32 - 1))
    else:
        tensor.extents = tensor.extents[::-1] if dice.random() < 0.5 else other.extents


def _tamper_counts(dice: random.Random, file: File) -> None:
    how = dice.randrange(5)
    if how < 2:
        file.counts[("tensors", "entries")[how]] = dice.choice(_COUNTS)
    elif how == 2:
        file.version = dice.choice((0, 1, 2, 4, 3 << 24, 2**32 - 1))
    elif how == 3:
        file.magic = dice.choice((b"GGML", b"GGUf", b"\0\0\0\0"))
    else:
        file.data = file.data[: dice.randrange(len(file.data))]
