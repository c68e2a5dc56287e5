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
from quire.resolve.model import SAMPLING_KEYS
from quire.text.tokenizers.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

_UNUSED_KEYS = (
    "bad_words_ids", "begin_suppress_tokens", "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "guidance_scale", "min_length", "min_new_tokens", "no_repeat_ngram_size", "num_beams",
    "penalty_alpha", "sequence_bias", "stop_strings", "suppress_tokens", "top_h", "typical_p",
)  # fmt: skip
"""Fields that change what Transformers generates, and that Quire does not use."""


def sampling_defaults(resolved: Resolved) -> dict[str, Any]:
    """Return values for unset sampling fields, from the model's generation config."""
    found = resolved.source.generation_config
    if unused := [k for k in _UNUSED_KEYS if found.get(k) not in (None, 0, 1, [], {})]:
        logger.warning(
            "The model's generation_config.json sets %s, which Quire does not use; set stop, "
            "logit_bias or bad_words per request.",
            ", ".join(f"{key}={found[key]!r:.80}" for key in unused),
        )
    defaults = {k: found[k] for k in SAMPLING_KEYS if found.get(k) is not None}
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

    A token that the model cannot generate ends nothing: it is left out with a warning. What an
    absent field of config.json means counts only if no other place names an end: of Llama it is
    token 2, which is "#" in Llama 3's vocabulary.

    Raises:
        CheckpointError: an end token is no number.
    """
    model = resolved.config.model
    generation = resolved.source.generation_config.get("eos_token_id")
    places = {
        "config.json": model.eos_token_ids,
        "generation_config.json": generation if isinstance(generation, list) else [generation],
        "the tokenizer": [tokenizer.eos_token_id],
    }
    if not _states_end(resolved.source.config) and any(
        token is not None for ids in [*places.values()][1:] for token in ids
    ):
        del places["config.json"]
    found = set()
    for place, ids in places.items():
        for token in ids:
            if token is None:
                continue
            if type(token) is not int:
                raise CheckpointError(
                    f"eos_token_id of {place} is {token!r}; it must be a token id or a list.",
                    fix="Use the files that belong to the model, or set it in --hf-overrides.",
                )
            if 0 <= token < model.vocab_size:
                found.add(token)
            else:
                logger.warning(
                    "eos_token_id of %s is %d, which ends no text: the vocabulary ends at %d.",
                    place, token, model.vocab_size - 1,
                )  # fmt: skip
    return tuple(sorted(found))


def _states_end(config: dict[str, Any]) -> bool:
    text = config.get("text_config")
    return "eos_token_id" in config or (isinstance(text, dict) and "eos_token_id" in text)


def check_vocabulary(config: EngineConfig, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer of another model; warn of special tokens that the model does not embed.

    Some models have such a token, for images or padding. A prompt that holds one is refused.
    """
    size = config.model.vocab_size
    beyond = range(size, tokenizer.vocab_size)
    special = tokenizer.all_special_ids
    if any(i not in special and tokenizer.id_to_token(i) is not None for i in beyond):
        raise CheckpointError(
            f"The tokenizer has {tokenizer.vocab_size} tokens, but the model embeds only {size}.",
            fix="Use the tokenizer that belongs to the model (--tokenizer).",
            param="tokenizer",
        )
    if beyond:
        names = [repr(name) for i in beyond[:8] if (name := tokenizer.id_to_token(i)) is not None]
        logger.warning(
            "The model embeds %d tokens and the tokenizer has %d; prompts with %s are refused.",
            size, tokenizer.vocab_size, ", ".join(names) or "the others",
        )  # fmt: skip
