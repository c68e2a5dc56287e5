"""Images: what is decoded, and what is refused; sizes are compared in tests/golden/test_vision."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageConfig, ImageSpan, Product, VisionConfig
from quire.core.options import RequestInputs
from quire.core.request import Request
from quire.core.sampling_params import SamplingParams
from quire.frontend.images.expand import expand
from quire.frontend.images.prepare import prepare
from quire.frontend.images.prompts import ImagePrompt, with_images
from quire.kv.hashing import BlockHasher
from quire.runner.images import SequenceImages
from quire.text.tokenizers.tokenizer import load_tokenizer

CONFIG = ImageConfig((0.5,) * 3, (0.5,) * 3, 4, 0, shortest_edge=64, longest_edge=4096)
VISION = VisionConfig(
    "qwen2_vl", 9, 32, 48, 2, 2, 4, "quick_gelu", (Product(64),), merge=2, sections=(2, 3, 3)
)


def encoded(kind: str, width: int = 40, height: int = 24) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def png(width: int, height: int) -> bytes:
    """Return a small file that announces many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        ends = struct.pack(">I", len(data)), struct.pack(">I", zlib.crc32(kind + data))
        return ends[0] + kind + data + ends[1]

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1000))
    parts = chunk(b"IHDR", head), chunk(b"IDAT", data), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("size", [(60000, 60000), (50001, 1000), (2**31 - 1, 1), (0, 5)])
def test_a_bomb_is_refused_before_it_is_decoded(size: tuple[int, int]) -> None:
    with pytest.raises(InvalidRequestError, match="The image cannot be read"):
        prepare(png(*size), VISION, CONFIG)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_damaged_files_are_refused_or_read(kind: str) -> None:
    whole, draw = encoded(kind), random.Random(kind)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 8)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        del data[draw.randint(1, len(data)) :]
        with contextlib.suppress(InvalidRequestError):  # any other error fails the test
            [tile] = prepare(bytes(data), VISION, CONFIG).tiles
            assert len(tile.pixels) == 3 * tile.height * tile.width <= 3 * 4096


@pytest.mark.parametrize(
    ("width", "height", "tiles", "last"),
    [
        (20, 20, (0, 0), (16, 16)),
        (3, 60, (0, 0), (64, 8)),
        (41, 60, (2, 1), (32, 24)),
        (101, 33, (1, 3), (16, 48)),
        (64, 64, (2, 2), (32, 32)),
    ],
)
def test_a_large_image_is_cut_behind_which_the_whole_stands(
    width: int, height: int, tiles: tuple[int, int], last: tuple[int, int]
) -> None:
    """LFM2-VL; the numbers are those of Transformers' processor."""
    sizes = {"shortest_edge": 256, "longest_edge": 1024, "crop": 16, "tiles": (2, 4)}
    config = ImageConfig((0.5,) * 3, (0.5,) * 3, 4, 0, split=True, aspect=2.0, **sizes)
    found = prepare(np.zeros((height, width, 3), np.uint8), replace(VISION, fit="tiled"), config)
    assert found.grid == tiles
    *cut, whole = [(tile.height, tile.width) for tile in found.tiles]
    assert cut == [(16, 16)] * (tiles[0] * tiles[1])
    assert whole == last


def test_a_digest_covers_the_file_and_the_settings() -> None:
    data, other = encoded("PNG"), encoded("PNG", 41)
    changed = ImageConfig((0.5,) * 3, (0.4,) * 3, 4, 0, shortest_edge=64, longest_edge=4096)
    found = [prepare(data, VISION, CONFIG), prepare(other, VISION, CONFIG)]
    found += [prepare(data, VISION, changed), prepare(Image.open(io.BytesIO(data)), VISION, CONFIG)]
    assert len({image.digest for image in found}) == 4
    assert prepare(data, VISION, CONFIG) == found[0]


def test_arrays_and_pillow_images_are_alike() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    given = (pixels, pixels.transpose(2, 0, 1), pixels[None], pixels / np.float32(255))
    each = [prepare(image, VISION, CONFIG) for image in (*given, Image.fromarray(pixels))]
    assert all(image == each[0] for image in each)
    for wrong in (pixels[..., :2], pixels * 2.0, "text", 7, np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(InvalidRequestError):
            prepare(wrong, VISION, CONFIG)


def test_placeholders_become_the_rows_of_their_image() -> None:
    tokenizer = load_tokenizer(None, vocab_size=256)
    image = prepare(encoded("PNG"), VISION, CONFIG)
    tokens, spans = expand([1, 9, 2, 9], [image, image], VISION, tokenizer)
    places = [(span.start, span.rows, span.grid) for span in spans]
    assert places == [(1, 15, (3, 5)), (17, 15, (3, 5))]
    assert tokens == [1, *[9] * 15, 2, *[9] * 15]
    with pytest.raises(InvalidRequestError, match="1 placeholders"):
        expand([1, 9], [image, image], VISION, tokenizer)


def test_images_that_are_nearly_equal_share_no_block() -> None:
    """Crops, the same bytes in another shape, a file with a further byte, one other pixel."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    other = pixels.copy()
    other[-1, -1, -1] ^= 1
    file = encoded("PNG")
    each = [file, file + b"0", pixels, other]
    each += [pixels.reshape(40, 24, 3), pixels[:16], pixels[:, :32]]
    tokenizer, hasher = load_tokenizer(None, vocab_size=256), BlockHasher(4, "sha256", 0)
    known: set[bytes] = set()
    for image in each:
        tokens, spans = expand([9], [prepare(image, VISION, CONFIG)], VISION, tokenizer)
        inputs = RequestInputs(images=tuple(spans))
        asked = Request(
            "r", tokens, SamplingParams(), arrival_time=0.0, max_model_len=999, inputs=inputs
        )
        hashes = hasher.extend(asked)
        assert len(hashes) == len(tokens) // 4 > 0
        assert known.isdisjoint(hashes)
        known.update(hashes)


def test_positions_behind_an_image_follow_its_longer_side() -> None:
    span = ImageSpan(2, 6, b"", (2, 3), (16, 24), b"")
    images = SequenceImages([span], 10)
    expected = [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6, 7, 8],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8],
    ]
    for start in range(12):
        for end in range(start + 1, 13):
            found = images.positions(start, end - start).tolist()
            assert found == [row[start:end] for row in expected]


def test_prompts_with_images() -> None:
    given = with_images({"prompt": "a", "multi_modal_data": {"image": [b"x"]}})
    assert given == ImagePrompt("a", [b"x"])
    assert with_images({"prompt": "a", "multi_modal_data": {}}) == {"prompt": "a"}
    for wrong in (
        {"prompt": "a", "multi_modal_data": {"audio": b"x"}},
        {"prompt": "a", "multi_modal_data": 7},
        {"prompt_embeds": 1, "multi_modal_data": {"image": b"x"}},
    ):
        with pytest.raises(InvalidRequestError):
            with_images(wrong)
