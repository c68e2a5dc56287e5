"""Prompts with images: their tokens, with as many placeholders as the images have rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha256

from msgspec.structs import replace

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageSpan, VisionConfig
from quire.frontend.images.prepare import Prepared
from quire.text.tokenizers.tokenizer import Tokenizer


def expand(
    token_ids: Sequence[int], images: Sequence[Prepared], vision: VisionConfig, tokenizer: Tokenizer
) -> tuple[list[int], tuple[ImageSpan, ...]]:
    """Return the tokens with the placeholders of all rows, and the spans of these.

    Raises:
        InvalidRequestError: there are not as many placeholders as images.
    """
    count = sum(token == vision.marker for token in token_ids)
    if count != len(images):
        raise InvalidRequestError(
            f"The prompt has {count} placeholders of images (token {vision.marker}) and "
            f"{len(images)} images.",
            fix="Write one placeholder for each image.",
            param="image",
        )
    if vision.marker != vision.image_token and vision.image_token in token_ids:
        raise InvalidRequestError(
            f"The prompt has token {vision.image_token}, which stands for a row of an image.",
            fix=f"Write token {vision.marker} for each image.",
            param="image",
        )
    return _Expansion(vision, tokenizer).of(token_ids, images)


class _Expansion:
    """Collects the tokens and the spans of one prompt."""

    def __init__(self, vision: VisionConfig, tokenizer: Tokenizer) -> None:
        self._vision = vision
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._spans: list[ImageSpan] = []
        self._open_lines = 0  # line ends behind an image that are not written yet

    def of(
        self, token_ids: Sequence[int], images: Sequence[Prepared]
    ) -> tuple[list[int], tuple[ImageSpan, ...]]:
        if self._vision.whole == "prompt":
            return self._as_prefix(token_ids, images)
        left, place = iter(images), _PLACES[self._vision.place]
        for token in token_ids:
            if token == self._vision.marker:
                place(self, next(left))
            elif self._open_lines and (more := self._line_ends(token)):
                self._open_lines += more
            else:
                self._close_lines()
                self._tokens.append(token)
        self._close_lines()
        return self._tokens, tuple(self._spans)

    def _as_prefix(
        self, token_ids: Sequence[int], images: Sequence[Prepared]
    ) -> tuple[list[int], tuple[ImageSpan, ...]]:
        """Write PaliGemma's prompt: its images, a begin, the text, a line end."""
        begin = self._tokenizer.bos_token_id
        for image in images:
            self._rows(image, 0)
        self._tokens += [] if begin is None else [begin]
        self._tokens += (token for token in token_ids if token not in (self._vision.marker, begin))
        self._open_lines = self._take_line_ends() + 1
        self._close_lines()
        whole = 0, len(self._tokens)
        return self._tokens, tuple(replace(span, whole=whole) for span in self._spans)

    def plain(self, image: Prepared) -> None:
        """Write an image's rows."""
        self._rows(image, 0)

    def framed(self, image: Prepared) -> None:
        """Write an image's rows between a begin and an end."""
        self._tokens.append(self._vision.begin_token)
        self._rows(image, 0)
        self._tokens.append(self._vision.end_token)

    def in_lines(self, image: Prepared) -> None:
        """Write the rows of Gemma 3 between a begin and an end, with empty lines around them.

        Line ends beside them share tokens with theirs, as in a text that is tokenized whole.
        """
        parts = len(image.tiles) - 1
        texts = ["Here is the original image "] if parts else [""]
        texts += [" and here are some crops to help you see better ", *[" "] * (parts - 1)][:parts]
        for number, text in enumerate(texts):
            if text:
                self._close_lines()
                self._write(text)
            self._open_lines += self._take_line_ends() + 2
            self._close_lines()
            self._tokens.append(self._vision.marker)
            self._rows(image, number)
            self._tokens.append(self._vision.end_token)
            self._open_lines = 2

    def in_tiles(self, image: Prepared) -> None:
        """Write each tile behind the text that says where it lies."""
        *texts, end = _TEXTS[self._vision.place](image)
        for number, text in enumerate(texts):
            self._write(text)
            self._rows(image, number)
        self._write(end)

    def in_lines_of_tiles(self, image: Prepared) -> None:
        """Write the rows of LLaVA-NeXT: the whole image's, and those of its tiles' lines."""
        vision, tiles = self._vision, image.tiles
        if tiles[0].rows:
            return self._rows(image, 0)
        side = tiles[0].width
        edge = side // vision.patch_size
        lines, columns = _unpadded((edge * image.grid[0], edge * image.grid[1]), image.size)
        rows = edge * edge + lines * (columns + 1)
        self._spans.append(
            ImageSpan(
                start=len(self._tokens),
                rows=rows,
                digest=image.digest,
                grid=None,
                size=(side * len(tiles), side),
                pixels=b"".join(tile.pixels for tile in tiles),
                tiling=(*image.grid, lines, columns),
            )
        )
        self._tokens += [vision.image_token] * rows
        return None

    def in_ended_lines(self, image: Prepared) -> None:
        """Write the rows of Pixtral: a token ends each line, and another one the last."""
        vision, [tile] = self._vision, image.tiles
        unit = vision.patch_size * vision.merge
        lines, columns = tile.height // unit, tile.width // unit
        line_end, end = map(self._token, ("[IMG_BREAK]", "[IMG_END]"))
        tokens = ([*[vision.image_token] * columns, line_end] * lines)[:-1]
        self._spans.append(
            ImageSpan(
                start=len(self._tokens),
                rows=len(tokens),
                digest=image.digest,
                grid=None,
                size=(tile.height, tile.width),
                pixels=tile.pixels,
                line=columns + 1,
            )
        )
        self._tokens += [*tokens, end]

    def _token(self, text: str) -> int:
        """Return the one token of a text."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        if len(found) != 1:
            raise InvalidRequestError(
                f"The tokenizer has no token {text}, which an image of this model needs.",
                fix="Use the tokenizer that belongs to the model (--tokenizer).",
                param="image",
            )
        return found[0]

    def _rows(self, image: Prepared, number: int) -> None:
        """Write the placeholders of a tile's rows, and its span."""
        vision, tile = self._vision, image.tiles[number]
        unit = vision.patch_size * vision.merge
        grid = tile.height // unit, tile.width // unit
        start, rows = len(self._tokens), tile.rows or grid[0] * grid[1]
        self._spans.append(
            ImageSpan(
                start=start,
                rows=rows,
                digest=sha256(image.digest + number.to_bytes(4, "little")).digest(),
                grid=grid if vision.sections else None,
                size=(tile.height, tile.width),
                pixels=tile.pixels,
                whole=(start, start + rows) if vision.whole in _ROWS else None,
                given=tile.rows > 0,
            )
        )
        self._tokens += [vision.image_token] * rows

    def _write(self, text: str) -> None:
        if text:
            self._tokens += self._tokenizer.encode(text, add_special_tokens=False)

    def _take_line_ends(self) -> int:
        """Remove the last tokens that are only line ends; return how many line ends these are."""
        count = 0
        while self._tokens and (more := self._line_ends(self._tokens[-1])):
            count += more
            self._tokens.pop()
        return count

    def _close_lines(self) -> None:
        self._write("\n" * self._open_lines)
        self._open_lines = 0

    def _line_ends(self, token: int) -> int:
        """Return the line ends that a token is made of; 0 if it has other text."""
        text = self._tokenizer.decode([token], skip_special_tokens=False)
        return 0 if text.strip("\n") else len(text)


def _unpadded(plane: tuple[int, int], image: tuple[int, int]) -> tuple[int, int]:
    """Return the lines and columns of a plane of patches that show an image of this size."""
    (lines, columns), (height, width) = plane, image
    if width / height > columns / lines:
        shown = int(round(height * (columns / width), 7))
        return lines - (lines - shown) // 2 * 2, columns
    shown = int(round(width * (lines / height), 7))
    return lines, columns - (columns - shown) // 2 * 2


def _run(image: Prepared) -> list[str]:
    """InternVL: all tiles follow each other."""
    return ["<img>", *[""] * (len(image.tiles) - 1), "</img>"]


def _idefics3(image: Prepared) -> list[str]:
    """Idefics 3: a line of tiles is one of text, and the whole stands behind an empty one."""
    fake = "<fake_token_around_image>"
    rows, columns = image.grid
    texts = []
    for row in range(rows):
        for column in range(columns):
            ended = "\n" if row and not column else ""
            texts.append(f"{ended}{fake}<row_{row + 1}_col_{column + 1}>")
    ended = "\n\n" if rows else ""
    texts.append(f"{ended}{fake}<global-img>")
    return [*texts, fake]


def _labelled(image: Prepared) -> list[str]:
    """LFM2-VL: each tile has a token that says where it lies."""
    rows, columns = image.grid
    labels = [f"<|img_row_{r + 1}_col_{c + 1}|>" for r in range(rows) for c in range(columns)]
    begin, *labels = [*labels, "<|img_thumbnail|>"] if labels else [""]
    return [f"<|image_start|>{begin}", *labels, "<|image_end|>"]


_ROWS = ("image", "sliding")
"""`VisionConfig.whole` of models in which an image's rows see each other."""
_TEXTS: dict[str, Callable[[Prepared], list[str]]] = {
    "labelled": _labelled,
    "run": _run,
    "tiles": _idefics3,
}
"""By `VisionConfig.place`: the texts before each tile, and behind the last."""
_PLACES = dict.fromkeys(_TEXTS, _Expansion.in_tiles) | {
    "ended_lines": _Expansion.in_ended_lines,
    "framed": _Expansion.framed,
    "lines": _Expansion.in_lines,
    "plain": _Expansion.plain,
    "tile_lines": _Expansion.in_lines_of_tiles,
}
