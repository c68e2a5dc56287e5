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
    check_served(PARAM, config)
    if config.pooling is not None:
        raise InvalidRequestError(
            f"A pooling model takes texts and token ids, no {PARAM}.", param=PARAM
        )
    hidden_size = config.model.hidden_size
    found = read_floats(value, config.scheduler.max_model_len * hidden_size, PARAM)
    if found.ndim == 3 and len(found) == 1:
        found = found[0]
    if found.ndim != 2 or found.shape[1] != hidden_size or not len(found):
        raise InvalidRequestError(
            f"{PARAM} is of shape {list(found.shape)}; it must be [tokens, {hidden_size}].",
            param=PARAM,
        )
    return np.ascontiguousarray(found)


def check_served(param: str, config: EngineConfig) -> None:
    """Raise `InvalidRequestError` if the engine takes no embeddings."""
    if not config.enable_prompt_embeds:
        raise InvalidRequestError(
            f"{param} are not served here.", fix="Start with --enable-prompt-embeds.", param=param
        )


def read_floats(value: Any, most: int, param: str) -> NDArray[np.float32]:
    """Return a tensor or the bytes of its file as float32; all numbers are finite.

    Args:
        most: numbers of a file.
        param: the field that errors name.

    Raises:
        InvalidRequestError: it is no tensor of floats.
    """
    if isinstance(value, bytes | bytearray):
        try:
            found = read_tensor(bytes(value), most)
        except CheckpointError as error:
            raise InvalidRequestError(f"{param}: {error}", param=param) from None
    else:
        found = _from_array(value, param)
    if not np.isfinite(found).all():
        raise InvalidRequestError(f"{param} holds numbers that are not finite.", param=param)
    return found


def _from_array(value: Any, param: str) -> NDArray[np.float32]:
    try:
        found = host_array(value)
    except TypeError as error:
        raise InvalidRequestError(
            f"{param} must be a tensor of floats: {error}.", param=param
        ) from None
    if not is_float(found.dtype):
        raise InvalidRequestError(f"{param} is of {found.dtype}, not of floats.", param=param)
    return converted(found, FLOAT32)  # holds the narrower types exactly
