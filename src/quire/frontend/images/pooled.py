"""Prompts of models that embed a text or an image, each by itself."""

from __future__ import annotations

from typing import Any

from quire.core.errors import InvalidRequestError
from quire.core.images import ImageSpan, VisionConfig
from quire.frontend.images.prepare import Prepared
from quire.frontend.images.prompts import ImagePrompt
from quire.frontend.workers.tokenizer_worker import ChatPrompt


def plain_prompt(prompt: ChatPrompt | ImagePrompt) -> str | ImagePrompt:
    """Return the text or the image of a conversation. No template is applied.

    Raises:
        InvalidRequestError: it has both, or several images.
    """
    images = prompt.images if isinstance(prompt, ImagePrompt) else []
    chat = prompt.prompt if isinstance(prompt, ImagePrompt) else prompt
    assert isinstance(chat, ChatPrompt), "the prompt is a conversation"
    texts = list[str]()
    for message in chat.messages:
        content: Any = message.get("content") or []
        parts = [{"text": content}] if isinstance(content, str) else content
        texts += [part["text"] for part in parts if part.get("text")]
    text = "\n".join(texts)
    return ImagePrompt(text, images) if images else text


def check_pooled(prompt: ImagePrompt, vision: VisionConfig | None) -> VisionConfig:
    """Return the tower that embeds a prompt's image; raise InvalidRequestError if none can."""
    if vision is None or vision.pool is None:
        raise InvalidRequestError(
            "This model embeds no images.", fix="Serve CLIP or SigLIP.", param="image"
        )
    if len(prompt.images) > 1:
        raise InvalidRequestError(
            f"The prompt has {len(prompt.images)} images; an embedding is of one.",
            fix="Send one prompt for each image.",
            param="image",
        )
    if prompt.prompt:
        raise InvalidRequestError(
            "The prompt has a text and an image; this model embeds each by itself.",
            fix="Send them as two prompts, the image with an empty text.",
            param="image",
        )
    return vision


def span_of(image: Prepared) -> ImageSpan:
    """Return the span of a prompt that is one token: the image's embedding."""
    [tile] = image.tiles
    return ImageSpan(0, 1, image.digest, None, (tile.height, tile.width), tile.pixels)
