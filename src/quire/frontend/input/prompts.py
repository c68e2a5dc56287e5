"""Prompts as users give them; mappings have vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from quire.core.config import EngineConfig
from quire.core.errors import InvalidRequestError
from quire.core.registry import did_you_mean
from quire.frontend.images.prompts import ImagePrompt
from quire.frontend.input.params import check_ids
from quire.frontend.workers.tokenizer_worker import ChatPrompt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


class EmbedsPrompt(TypedDict):
    prompt_embeds: Any
    """A float tensor [tokens, hidden_size]."""


PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt
Countable = str | ChatPrompt | ImagePrompt
"""What has tokens to count: text or a conversation."""
Prompt = str | list[int] | Mapping[str, Any] | ChatPrompt | ImagePrompt
"""Text, token ids, a conversation, or a mapping with one of "prompt", "prompt_token_ids" and
"prompt_embeds" (a float tensor [tokens, hidden], or its file)."""
_PROMPT_KEYS = ("prompt", "prompt_token_ids", "prompt_embeds")


def check_prompt(
    prompt: Prompt, config: EngineConfig
) -> str | list[int] | ChatPrompt | NDArray[np.float32]:
    """Return the prompt without its mapping, after checking its type and values.

    Raises:
        InvalidRequestError: the prompt is invalid.
    """
    if isinstance(prompt, Mapping):
        if list(prompt) == ["prompt_embeds"]:
            from quire.frontend.input.embeds import embeds_of

            return embeds_of(prompt["prompt_embeds"], config)
        prompt = _from_mapping(prompt)
    if isinstance(prompt, ChatPrompt):
        return prompt
    if isinstance(prompt, ImagePrompt):
        raise InvalidRequestError("Images are not read here.", param="image")
    if not isinstance(prompt, str | list):
        raise InvalidRequestError(
            f"A prompt is text, a list of token ids or a mapping, not {_kind(prompt)}.",
            param="prompt",
        )
    if isinstance(prompt, list):
        check_ids("prompt", prompt, config.model.vocab_size)
        return list(prompt)
    if prompt.isascii():
        return prompt
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"The prompt is not valid Unicode: a lone surrogate at character {error.start}.",
            param="prompt",
        ) from None
    return prompt


def _from_mapping(prompt: Mapping[str, Any]) -> Any:
    """Return the value of a prompt given as a mapping."""
    for key in prompt:
        if key not in _PROMPT_KEYS:
            raise InvalidRequestError(
                f"A prompt has no field {key!r}; {did_you_mean(str(key), _PROMPT_KEYS)}",
                param="prompt",
            )
    if len(prompt) != 1:
        raise InvalidRequestError(
            f"A prompt is given as one of {', '.join(_PROMPT_KEYS)}.", param="prompt"
        )
    key, value = next(iter(prompt.items()))
    if not isinstance(value, str if key == "prompt" else list):
        raise InvalidRequestError(f"{key} must not be {_kind(value)}.", param=key)
    return value


def _kind(value: object) -> str:
    return type(value).__name__
