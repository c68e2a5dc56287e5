"""A tokenizer as Python users expect it: with Transformers' `apply_chat_template`."""

from __future__ import annotations

from typing import Any, cast

from quire.text.chat import chat_to_token_ids, render_chat
from quire.text.tokenizers.tokenizer import Tokenizer

Conversation = list[dict[str, Any]]


class UserTokenizer:
    """All of a `Tokenizer`, and its chat template. Names and defaults are Transformers'."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def apply_chat_template(
        self,
        conversation: Conversation | list[Conversation],
        tools: list[dict[str, Any]] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Return the prompt of a conversation as token ids, or as text without `tokenize`.

        Several conversations give a list. `kwargs` are variables of the template.

        Raises:
            ConfigError: the model has no chat template.
            InvalidRequestError: the conversation cannot be rendered.
        """
        options: dict[str, Any] = {
            "tools": tools,
            "chat_template": chat_template,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "kwargs": kwargs,
        }
        one = not conversation or isinstance(conversation[0], dict)
        many = cast(list[Conversation], [conversation] if one else conversation)
        found = [
            chat_to_token_ids(self._tokenizer, messages, **options)
            if tokenize
            else render_chat(self._tokenizer, messages, **options).text
            for messages in many
        ]
        return found[0] if one else found
