"""Prompts as mappings, under vLLM's names."""

from __future__ import annotations

from typing import Any, TypedDict


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


class EmbedsPrompt(TypedDict):
    prompt_embeds: Any
    """A float tensor [tokens, hidden_size]."""


PromptType = str | list[int] | TextPrompt | TokensPrompt | EmbedsPrompt
