"""What a pooling model supports, and the prompts that it puts before texts."""

from __future__ import annotations

from quire.core.errors import InvalidRequestError
from quire.core.model_config import PoolingConfig
from quire.core.registry import did_you_mean


def check_task(config: PoolingConfig | None, task: str) -> PoolingConfig:
    """Return the configuration of a pooling model that supports `task`.

    Args:
        task: "embed", "classify", or "score", which both kinds of models support.

    Raises:
        InvalidRequestError: the model does not support it.
    """
    if config is None:
        raise InvalidRequestError(
            "This model generates text; it returns no embeddings and no scores.",
            fix="Serve it with --runner pooling, or serve an embedding model.",
            param="model",
        )
    if task not in ("score", config.task):
        gives = "embeddings" if config.task == "embed" else "classes of texts"
        raise InvalidRequestError(
            f"This model returns {gives}.",
            fix="Ask for that, or serve another model.",
            param="model",
        )
    return config


def instructed(config: PoolingConfig, text: str, name: str | None) -> str:
    """Return `text` after the model's prompt of that name, or after its default prompt.

    Raises:
        InvalidRequestError: the model has no prompt of that name.
    """
    name = name or config.default_prompt
    if name is None:
        return text
    if name not in config.prompts:
        known = did_you_mean(name, config.prompts) if config.prompts else "it has none."
        raise InvalidRequestError(f"The model has no prompt {name!r}; {known}", param="prompt_name")
    return config.prompts[name] + text
