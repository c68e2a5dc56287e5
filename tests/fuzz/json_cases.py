"""JSON that somebody has tampered with."""

from __future__ import annotations

import json
import random
from typing import Any

INTERESTING: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400),
    *(0.0, 0.5, -0.0, -1.5, 1e-320, 1e308, float("nan"), float("inf"), float("-inf")),
    *("", "x", "0", "F32", "float32", "\ud800", "\0", "é" * 9, "a" * 3000, "../../etc/passwd"),
    *([], {}, [[]], [None], ["x", 1], {"a": {}}, [0] * 40, {"type": []}, {"0": 0}),
)


def changed(dice: random.Random, value: Any) -> Any:
    """A copy of `value`, in which one thing, at any depth, is another."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        table = dict(value)
        key = dice.choice(list(table))
        how = dice.random()
        if how < 0.1:
            del table[key]
        elif how < 0.2:
            table[str(dice.choice(INTERESTING))] = table.pop(key)
        elif how < 0.25:
            table[dice.choice(list(table))] = table[key]
        else:
            table[key] = changed(dice, table[key])
        return table
    if isinstance(value, list) and value and dice.random() < 0.8:
        items = list(value)
        at = dice.randrange(len(items))
        how = dice.random()
        if how < 0.1:
            del items[at]
        elif how < 0.2:
            items.insert(at, dice.choice(INTERESTING))
        else:
            items[at] = changed(dice, items[at])
        return items
    if type(value) is int and dice.random() < 0.5:
        return dice.choice((value + 1, value - 1, -value, value * 2, value // 2, value << 32))
    return dice.choice(INTERESTING)


def tampered_text(dice: random.Random, text: bytes) -> bytes:
    """`text` with bytes of it flipped, cut, doubled, or nested too deep."""
    raw = bytearray(text)
    how = dice.randrange(6)
    if how == 0:
        return bytes(raw[: dice.randrange(len(raw))])
    if how == 1:
        at = dice.randrange(len(raw))
        return bytes(raw[:at] + raw[at : at + dice.randrange(1, 40)] + raw[at:])
    if how == 2:
        at = dice.randrange(len(raw))
        return bytes(raw[:at] + b"[" * dice.choice((3, 900, 30_000)) + raw[at:])
    if how == 3:
        at = dice.randrange(len(raw))
        return bytes(raw[:at] + b"9" * dice.choice((1, 30, 5000)) + raw[at:])
    for _ in range(dice.randint(1, 4)):
        some = (dice.randrange(256), 0x22, 0x2C, 0x39, 0x7D, 0xFF, 0x5C)
        raw[dice.randrange(len(raw))] = dice.choice(some)
    return bytes(raw)


def tampered_json(dice: random.Random, value: Any) -> bytes:
    """The text of `value`, with one to three faults."""
    if dice.random() < 0.25:
        return tampered_text(dice, json.dumps(value).encode())
    for _ in range(dice.randint(1, 3)):
        value = changed(dice, value)
    return json.dumps(value).encode()
