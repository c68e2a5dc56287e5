"""Mutated image files and parts of messages: `python -m tests.fuzz.images`.

Each is read or refused with a reason, in bounded time and memory.
"""

from __future__ import annotations

import asyncio
import base64
import io
import resource
import signal
import struct
import sys
import zlib
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from PIL import Image

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageConfig, Product, VisionConfig
from quire.frontend.images.fetch import Media
from quire.frontend.images.prepare import prepare
from quire.frontend.images.prompts import ImagePrompt, is_embeds, pictured
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.system.limits import bound
from tests.fuzz.mutate import TEXTS, mutate_bytes, value

SIZES = {"shortest_edge": 64, "longest_edge": 4096}
CONFIG = ImageConfig((0.5,) * 3, (0.5,) * 3, 4, 0, **SIZES)
VISION = VisionConfig(
    "qwen2_vl", 9, 32, 48, 2, 2, 4, "quick_gelu", (Product(64),), merge=2, sections=(2, 3, 3)
)
SECONDS = 5.0
"""CPU time of a case; most take less than a millisecond."""
MEMORY = 2**30
"""More address space than at the start."""
HEADS = [
    "data:image/png;base64",
    "data:;BASE64",
    "data:",
    "data:image/png",
    "data:text/html;base64",
]


@cache
def files() -> list[bytes]:
    """Return small files of all formats, in many modes."""
    found: list[bytes] = []

    def save(image: Image.Image, kind: str, **options: Any) -> None:
        out = io.BytesIO()
        image.save(out, kind, **options)
        found.append(out.getvalue())

    noise = Image.frombytes("RGB", (24, 17), Random(0).randbytes(24 * 17 * 3))
    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = noise.convert("L").convert("I").convert(mode) if mode == "I;16" else None
        save(image or noise.convert(mode), "PNG")
    save(noise.quantize(7), "PNG", transparency=3)
    for mode in ("L", "RGB", "CMYK"):
        save(noise.convert(mode), "JPEG", progressive=mode == "L")
    exif = Image.Exif()
    exif[0x0112] = 6
    save(noise, "JPEG", exif=exif)
    for mode in ("RGB", "RGBA"):
        save(noise.convert(mode), "WEBP", lossless=mode == "RGBA")
    for kind in ("GIF", "WEBP", "PNG"):
        save(noise, kind, save_all=True, append_images=[noise.rotate(90)] * 2, loop=0)
    return found


def with_checksums(data: bytes) -> bytes:
    """Return a PNG whose chunks have right checksums, so that decoders read what was changed."""
    out, at = data[:8], 8
    while at + 12 <= len(data):
        [length] = struct.unpack(">I", data[at : at + 4])
        body = data[at + 4 : at + 8 + length]
        out += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + length
    return out + data[at:]


def _hang(*_: Any) -> None:
    raise AssertionError(f"the case took {SECONDS} s of CPU time")


def case(random: Random) -> str:
    """Read a mutated file, or the part of a message with its address."""
    data = random.choice(files())
    if random.random() < 0.95:
        data = mutate_bytes(random, data)
    if data[:4] == b"\x89PNG" and random.random() < 0.7:
        data = with_checksums(data)
    signal.signal(signal.SIGVTALRM, _hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return _part(random, data) if random.random() < 0.4 else _read(data)
    except InvalidRequestError as error:
        if not str(error) or not error.param:
            raise AssertionError("a refusal says what is wrong") from error
        return "refused"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)


def _read(data: Any) -> str:
    [tile] = prepare(data, VISION, CONFIG).tiles
    # A side has at least 8 pixels. So an image of 200 to 1 may have more than the limit, as with
    # the processor.
    most = max(SIZES["longest_edge"], 8 * int((200 * SIZES["longest_edge"]) ** 0.5))
    assert len(tile.pixels) == 3 * tile.height * tile.width <= 3 * most
    return "read"


def _part(random: Random, data: bytes) -> str:
    address: Any = f"{random.choice(HEADS)},{base64.b64encode(data).decode()}"
    if random.random() < 0.3:
        address = mutate_bytes(random, address.encode()).decode(errors="replace")
    elif random.random() < 0.1:
        address = random.choice([*TEXTS, "file:///etc/passwd", "http://10.0.0.1/", value(random)])
    part: Any = {"type": "image_url", "image_url": {"url": address}}
    if random.random() < 0.2:
        part[random.choice(["type", "image_url"])] = value(random)
    elif random.random() < 0.1:
        part = value(random)
    found = pictured(ChatPrompt([{"role": "user", "content": [part]}]))
    if not isinstance(found, ImagePrompt):
        return "text"
    [image] = found.images
    if is_embeds(image):
        return "embeddings"
    loop, media = _media()
    return _read(loop.run_until_complete(media.load(image)))


@cache
def _media() -> tuple[asyncio.AbstractEventLoop, Media]:
    return asyncio.new_event_loop(), Media("good.test")


if __name__ == "__main__":
    from tests.fuzz.replay import main

    files()
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    bound(resource.RLIMIT_AS, used + MEMORY)
    sys.exit(main("tests.fuzz.images", case, 100_000))
