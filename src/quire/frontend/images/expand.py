"""Prompts with images: their tokens, with as many placeholders as the images have rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from msgspec.structs import replace

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageConfig, ImageSpan, VisionConfig
from quire.frontend.images.prepare import Prepared
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.text.tokenizers.tokenizer import Tokenizer

DATA = "multi_modal_data"


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt and its images.

    Attributes:
        images: in the prompt's order: an address, the bytes of a file, or what `prepare` takes.
    """

    prompt: str | list[int] | ChatPrompt
    images: list[Any] = field(default_factory=list)


def pictured(chat: ChatPrompt) -> ChatPrompt | ImagePrompt:
    """Return a conversation with its images taken out of its messages, if it has some.

    Parts of the types image_url and image_pil become parts {"type": "image"}.
    """
    images: list[Any] = []
    messages = [_without_addresses(message, images) for message in chat.messages]
    return ImagePrompt(replace(chat, messages=messages), images) if images else chat


def _without_addresses(message: Any, images: list[Any]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = []
    for part in content:
        match part:
            case {"type": "image_url", "image_url": {"url": str(address)}}:
                images.append(address)
                parts.append({"type": "image"})
            case {"type": "image_pil", "image_pil": image}:
                images.append(image)
                parts.append({"type": "image"})
            case {"type": "image"}:  # the template would write a placeholder without an image
                raise InvalidRequestError(
                    "A part of the type image has no image.",
                    fix="Send image_url with an address.",
                    param="messages",
                )
            case _:
                parts.append(part)
    return {**message, "content": parts}


def with_images(prompt: Any) -> Any:
    """Return a prompt that is a mapping with `multi_modal_data` as an `ImagePrompt`.

    Raises:
        InvalidRequestError: other data than images.
    """
    if not isinstance(prompt, Mapping) or DATA not in prompt:
        return prompt
    plain = {key: value for key, value in prompt.items() if key != DATA}
    data = prompt[DATA]
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"{DATA} must be a mapping.", param=DATA)
    for kind in data:
        if kind != "image":
            raise InvalidRequestError(f"{DATA} holds {kind!r}; Quire reads images.", param=DATA)
    images = data.get("image")
    if not isinstance(images, list | tuple):
        images = [] if images is None else [images]
    if not images:
        return plain
    key = next(iter(plain), None)
    if len(plain) != 1 or key not in ("prompt", "prompt_token_ids"):
        raise InvalidRequestError(f"{DATA} needs one of prompt and prompt_token_ids.", param=DATA)
    return ImagePrompt(plain[key], [*images])


def check_count(count: int, config: ImageConfig | None) -> ImageConfig:
    """Return the engine's settings; raise if it accepts no images, or fewer than `count`."""
    if config is None:
        raise InvalidRequestError("This model reads text; images are not served.", param="image")
    if count > config.most:
        raise InvalidRequestError(
            f"The prompt has {count} images; at most {config.most} are allowed.",
            fix="Send fewer, or start with a higher --limit-mm-per-prompt.",
            param="image",
        )
    return config


def without_images(prompt: Any, config: ImageConfig | None) -> Any:
    """Return a prompt without its images, after checking how many there are."""
    found = with_images(prompt)
    if not isinstance(found, ImagePrompt):
        return found
    check_count(len(found.images), config)
    return found.prompt


def expand(
    token_ids: Sequence[int], images: Sequence[Prepared], vision: VisionConfig, tokenizer: Tokenizer
) -> tuple[list[int], tuple[ImageSpan, ...]]:
    """Return the tokens with the placeholders of all rows, and the spans of these.

    Raises:
        InvalidRequestError: there are not as many placeholders as images.
    """
    count = sum(token == vision.image_token for token in token_ids)
    if count != len(images):
        raise InvalidRequestError(
            f"The prompt has {count} placeholders of images (token {vision.image_token}) and "
            f"{len(images)} images.",
            fix="Write one placeholder for each image.",
            param="image",
        )
    found: list[int] = []
    spans: list[ImageSpan] = []
    left = iter(images)
    for token in token_ids:
        if token == vision.image_token:
            _place(found, spans, next(left), vision, tokenizer)
        else:
            found.append(token)
    return found, tuple(spans)


def _place(
    tokens: list[int],
    spans: list[ImageSpan],
    image: Prepared,
    vision: VisionConfig,
    tokenizer: Tokenizer,
) -> None:
    """Append one image's tokens and spans."""
    texts = _around(image) if vision.kind == "idefics3" else ["", ""]
    unit = vision.patch_size * vision.merge
    for number, (text, tile) in enumerate(zip(texts, image.tiles, strict=False)):
        if text:
            tokens += tokenizer.encode(text, add_special_tokens=False)
        grid = tile.height // unit, tile.width // unit
        rows = grid[0] * grid[1]
        spans.append(
            ImageSpan(
                start=len(tokens),
                rows=rows,
                digest=sha256(image.digest + number.to_bytes(4, "little")).digest(),
                grid=grid if vision.sections else None,
                size=(tile.height, tile.width),
                pixels=tile.pixels,
            )
        )
        tokens += [vision.image_token] * rows
    if texts[-1]:
        tokens += tokenizer.encode(texts[-1], add_special_tokens=False)


def _around(image: Prepared) -> list[str]:
    """Return the texts before each tile of Idefics 3, and behind the last."""
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
