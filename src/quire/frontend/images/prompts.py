"""Prompts with images, before these are read: text or tokens, and the images in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from msgspec.structs import replace

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageConfig, VisionConfig
from quire.frontend.workers.tokenizer_worker import ChatPrompt
from quire.system.records import dataclass

DATA = "multi_modal_data"
_UUIDS = "multi_modal_uuids"
"""Accepted and not used: the digest of an image is its key."""


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
            case {"type": "image_embeds", "image_embeds": image}:
                images.append(image if isinstance(image, Mapping) else {"image_embeds": image})
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
    plain = {key: value for key, value in prompt.items() if key not in (DATA, _UUIDS)}
    data = prompt[DATA]
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"{DATA} must be a mapping.", param=DATA)
    for kind in data:
        if kind != "image":
            raise InvalidRequestError(f"{DATA} holds {kind!r}; Quire reads images.", param=DATA)
    images = data.get("image")
    if not isinstance(images, list | tuple):
        images = [] if images is None else _split(images)
    if not images:
        return plain
    key = next(iter(plain), None)
    if len(plain) != 1 or key not in ("prompt", "prompt_token_ids"):
        raise InvalidRequestError(f"{DATA} needs one of prompt and prompt_token_ids.", param=DATA)
    return ImagePrompt(plain[key], [*images])


def is_embeds(image: Any) -> bool:
    """Return whether an image is given as rows: a mapping, or an array of rows."""
    shape: tuple[int, ...] = getattr(image, "shape", ())
    rows = len(shape) == 3 and 3 not in (shape[0], shape[2])
    return isinstance(image, Mapping) or len(shape) == 2 or rows


def _split(images: Any) -> list[Any]:
    """Return the images of `multi_modal_data`: one, or rows of several [images, rows, width]."""
    several = len(getattr(images, "shape", ())) == 3 and is_embeds(images)
    return [*images] if several else [images]


def check_count(count: int, config: ImageConfig | None) -> ImageConfig:
    """Return the engine's settings; raise if it accepts no images, or fewer than `count`."""
    if config is None:
        raise InvalidRequestError(
            "This model reads text, or was started without images.",
            fix="Serve a model of docs/images.md without --language-model-only.",
            param="image",
        )
    if count > config.most:
        raise InvalidRequestError(
            f"The prompt has {count} images; at most {config.most} are allowed.",
            fix="Send fewer, or start with a higher --limit-mm-per-prompt.",
            param="image",
        )
    return config


def check_without(vision: VisionConfig | None) -> None:
    """Raise `InvalidRequestError` if the model cannot read a prompt without images."""
    if vision is not None and vision.whole == "prompt":
        raise InvalidRequestError("This model needs an image in each prompt.", param="prompt")


def check_unpictured(token_ids: Sequence[int], vision: VisionConfig | None) -> None:
    """Raise `InvalidRequestError` if a prompt without images has a placeholder of one."""
    for token in () if vision is None else {vision.marker, vision.image_token}:
        if token in token_ids:
            raise InvalidRequestError(
                f"The prompt has token {token}, which stands for an image, and no image.",
                fix="Leave it out, or send the image: in a chat, or as multi_modal_data of LLM.",
                param="prompt",
            )


def without_images(prompt: Any, config: ImageConfig | None) -> Any:
    """Return a prompt without its images, after checking how many there are."""
    found = with_images(prompt)
    if not isinstance(found, ImagePrompt):
        return found
    check_count(len(found.images), config)
    return found.prompt
