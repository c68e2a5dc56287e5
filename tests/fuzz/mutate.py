"""Seeded mutations of bytes, of JSON, and of HTTP requests."""

from __future__ import annotations

import json
from random import Random
from typing import Any

NUMBERS = [0, 1, -1, 2, 8, 127, 255, 256, 257, 258, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63)]
FLOATS = [0.0, -0.0, 1.0, 0.5, -1.5, 2.0, 1e-320, 1e308, -1e308, 100.0]
TEXTS = ["", "a", "\x00", "é", "\ufffd", "😀", "a" * 300, "<|end|>", "../..", "%s{0}{{", "\n"]
BYTES = [b"\x00", b"\xff", b"\xc3", b"\xf0\x9f", b"\r\n", b"\r\n\r\n", b" ", b":", b"%00"]
BYTES += [b"0", b"-", b'"', b"\\", b"{", b"[", b"]", b",", b"NaN", b"1e999", b"\\ud800"]
BYTES += [b"9" * 50, b"[" * 200]


def mutate_bytes(random: Random, data: bytes, most: int = 4) -> bytes:
    """`data` with one to `most` changes."""
    for _ in range(random.randint(1, most)):
        at = random.randint(0, len(data))
        end = min(len(data), at + random.choice([1, 1, 2, 4, 16, 64]))
        match random.randrange(6):
            case 0 if data:
                at = random.randrange(len(data))
                data = data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
            case 1:
                data = data[:at] + random.choice(BYTES) + data[at:]
            case 2:
                data = data[:at] + data[end:]
            case 3:
                data = data[:end] + data[at:end] + data[end:]
            case 4:
                data = data[:at]
            case _:
                data = data[:at] + random.randbytes(random.randint(1, 8)) + data[end:]
    return data


def value(random: Random, depth: int = 0) -> Any:
    """Any JSON value; mostly one that is near to what somebody expects."""
    match random.randrange(8 if depth < 3 else 5):
        case 0:
            return random.choice(NUMBERS)
        case 1:
            return random.choice(FLOATS)
        case 2:
            return random.choice(TEXTS)
        case 3:
            return random.choice([True, False, None])
        case 4:
            return random.randint(-300, 300)
        case 5:
            return [value(random, depth + 1) for _ in range(random.randint(0, 3))]
        case 6:
            names = [random.choice(TEXTS) for _ in range(random.randint(0, 3))]
            return {name: value(random, depth + 1) for name in names}
        case _:
            nested: Any = value(random, 3)
            for _ in range(random.choice([5, 50, 400])):
                nested = [nested]
            return nested


def mutate_json(random: Random, body: Any, names: list[str], most: int = 3) -> Any:
    """`body` with one to `most` values changed, gone, or new, at any depth.

    Args:
        names: of fields that may be added.
    """
    body = json.loads(json.dumps(body))
    for _ in range(random.randint(1, most)):
        place = body
        while True:
            if isinstance(place, dict) and place:
                key: Any = random.choice(list(place))
            elif isinstance(place, list) and place:
                key = random.randrange(len(place))
            else:
                break
            inner = place[key]
            if isinstance(inner, dict | list) and inner and random.random() < 0.6:
                place = inner
                continue
            choice = random.random()
            if choice < 0.6:
                place[key] = value(random)
            elif choice < 0.75:
                del place[key]
            elif isinstance(place, dict):
                place[random.choice(names)] = value(random)
            else:
                place.append(inner)
            break
    return body
