"""Prompts given as embeddings: the rows that the model would look up for its tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.checkpoint.torch_file import read_tensor
from quire.core.config import EngineConfig
from quire.core.dtypes import FLOAT32, converted, is_float
from quire.core.errors import CheckpointError, InvalidRequestError
from quire.system.user_arrays import host_array

PARAM = "prompt_embeds"


def embeds_of(value: Any, config: EngineConfig) -> NDArray[np.float32]:
    """Return a prompt's embeddings, float32 [tokens, hidden_size].

    Args:
        value: floats of any library (see `system.user_arrays`), [tokens, hidden_size] or
            [1, tokens, hidden_size]; or the bytes of a file that `torch.save` wrote.

    Raises:
        InvalidRequestError: another shape or type, a value that is not finite, or embeddings
            are disabled.
    """
    if not config.enable_prompt_embeds:
        raise InvalidRequestError(
            f"{PARAM} are not served here.", fix="Start with --enable-prompt-embeds.", param=PARAM
        )
    if config.pooling is not None:
        raise InvalidRequestError(
            f"A pooling model takes texts and token ids, no {PARAM}.", param=PARAM
        )
    hidden_size = config.model.hidden_size
    if isinstance(value, bytes | bytearray):
        try:
            found = read_tensor(bytes(value), config.scheduler.max_model_len * hidden_size)
        except CheckpointError as error:
            raise InvalidRequestError(f"{PARAM}: {error}", param=PARAM) from None
    else:
        found = _from_array(value)
    if found.ndim == 3 and len(found) == 1:
        found = found[0]
    if found.ndim != 2 or found.shape[1] != hidden_size or not len(found):
        raise InvalidRequestError(
            f"{PARAM} is of shape {list(found.shape)}; it must be [tokens, {hidden_size}].",
            param=PARAM,
        )
    if not np.isfinite(found).all():
        raise InvalidRequestError(f"{PARAM} holds numbers that are not finite.", param=PARAM)
    return np.ascontiguousarray(found)


def _from_array(value: Any) -> NDArray[np.float32]:
    try:
        found = host_array(value)
    except TypeError as error:
        raise InvalidRequestError(
            f"{PARAM} must be a tensor of floats: {error}.", param=PARAM
        ) from None
    if not is_float(found.dtype):
        raise InvalidRequestError(f"{PARAM} is of {found.dtype}, not of floats.", param=PARAM)
    return converted(found, FLOAT32)  # holds the narrower types exactly
