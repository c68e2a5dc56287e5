"""Facts about the served model that requests need: sampling defaults, end tokens, capacity."""

from __future__ import annotations

import logging
from typing import Any

from quire.core.config import EngineConfig
from quire.core.errors import CheckpointError, InvalidRequestError
from quire.core.messages import Ready
from quire.core.sampling_params import SamplingParams
from quire.kv.bounds import most_blocks
from quire.resolve.engine import Resolved
from quire.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def sampling_defaults(resolved: Resolved, generation_config: str) -> dict[str, Any]:
    """Return values for unset sampling fields, from the model's generation_config.json.

    Lengths are not among them: the request decides how long an answer may be.
    """
    if generation_config != "auto":
        return {}
    found = resolved.source.generation_config
    defaults = {k: found[k] for k in _SAMPLING_KEYS if found.get(k) is not None}
    try:
        SamplingParams(**defaults)
    except InvalidRequestError as error:
        logger.warning("The model's generation_config.json is not used: %s", error)
        return {}
    if defaults:
        values = ", ".join(f"{k}={v}" for k, v in defaults.items())
        logger.info("Unset sampling values come from the model's generation config: %s", values)
    return defaults


def cache_tokens(config: EngineConfig, ready: Ready) -> int:
    """Return the longest sequence that the whole KV cache can serve."""
    limits = config.scheduler
    most = most_blocks(
        limits.max_model_len,
        ready.block_size,
        config.model.common_window,
        limits.max_num_batched_tokens,
    )
    if most <= ready.num_gpu_blocks:
        return limits.max_model_len
    return ready.num_gpu_blocks * ready.block_size


def eos_token_ids(resolved: Resolved, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return all end tokens, from config.json, generation_config.json and the tokenizer.

    Raises:
        CheckpointError: an end token is not in the vocabulary.
    """
    model = resolved.config.model
    generation = resolved.source.generation_config.get("eos_token_id")
    places = {
        "config.json": model.eos_token_ids,
        "generation_config.json": generation if isinstance(generation, list) else [generation],
        "the tokenizer": [tokenizer.eos_token_id],
    }
    for place, ids in places.items():
        for token in ids:
            if token is not None and not (type(token) is int and 0 <= token < model.vocab_size):
                raise CheckpointError(
                    f"eos_token_id of {place} is {token!r}; the vocabulary ends at "
                    f"{model.vocab_size - 1}.",
                    fix="Use the files that belong to the model, or set it in --hf-overrides.",
                )
    return tuple(sorted({token for ids in places.values() for token in ids if token is not None}))


def check_vocabulary(config: EngineConfig, tokenizer: Tokenizer) -> None:
    if tokenizer.vocab_size > config.model.vocab_size:
        raise CheckpointError(
            f"The tokenizer has {tokenizer.vocab_size} tokens, "
            f"but the model embeds only {config.model.vocab_size}.",
            fix="Use the tokenizer that belongs to the model (--tokenizer).",
            param="tokenizer",
        )
