"""Images given as embeddings: the rows that the tower would compute."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np

from quire.checkpoint.torch_file import read_tensor
from quire.core.config import EngineConfig
from quire.core.errors import CheckpointError, InvalidRequestError
from quire.frontend.images.prepare import Prepared, Tile
from quire.frontend.input.embeds import check_served, read_floats
from quire.system.user_arrays import host_array

PARAM = "image_embeds"
GRID = "image_grid_thw"


def prepare_embeds(image: Any, config: EngineConfig) -> Prepared:
    """Return an image that was given as its rows.

    Args:
        image: rows of floats [rows, width] or [1, rows, width]; or a mapping with these under
            `image_embeds`, and for models whose positions have three parts `image_grid_thw`: 1 and
            the patches in height and width. Both may be the base64 of a file of `torch.save`.

    Raises:
        InvalidRequestError: another shape, or embeddings are disabled.
    """
    vision = config.model.vision
    assert vision is not None, "only models with a tower accept images"
    check_served(PARAM, config)
    if vision.line_ends:
        raise _wrong(f"This model takes no {PARAM}: they do not say where lines end.")
    given = image if isinstance(image, Mapping) else {PARAM: image}
    for name in given:
        if name not in (PARAM, GRID):
            raise _wrong(f"An image has no field {name!r}; embeddings have {PARAM} and {GRID}.")
    width = config.model.hidden_size * (1 + len(vision.deep_layers))
    most = config.scheduler.max_model_len * width
    rows = read_floats(_file(given.get(PARAM)), most, PARAM)
    if rows.ndim == 3 and len(rows) == 1:
        rows = rows[0]
    if rows.ndim != 2 or rows.shape[1] != width or not len(rows):
        raise _wrong(f"{PARAM} is of shape {list(rows.shape)}; it must be [rows, {width}].")
    height, across = 1, len(rows)
    if vision.sections:
        height, across = _grid(_file(given.get(GRID)), vision.merge)
        if height * across != len(rows):
            raise _wrong(f"{PARAM} has {len(rows)} rows; {GRID} says {height} × {across}.")
    elif GRID in given:
        raise _wrong(f"This model takes no {GRID}.")
    unit, data = vision.patch_size * vision.merge, rows.tobytes()
    digest = sha256(b"rows %d %d " % (height, across) + data).digest()
    size = height * unit, across * unit
    return Prepared(digest, [Tile(*size, data, len(rows))], size=size)


def _grid(value: Any, merge: int) -> tuple[int, int]:
    """Return the rows of the text model in height and width."""
    if value is None:
        raise _wrong(f"This model needs {GRID} with {PARAM}.")
    try:
        if isinstance(value, bytes):
            found = read_tensor(value, 3, integers=True)
        else:
            found = np.array(value) if isinstance(value, list | tuple) else host_array(value)
        _, *sides = map(int, found.reshape(-1)[:4])
    except (TypeError, ValueError, OverflowError, CheckpointError) as error:
        raise _wrong(f"{GRID} must be a tensor of three integers: {error}.") from None
    if len(sides) != 2 or any(side < merge or side % merge for side in sides):
        raise _wrong(f"{GRID} must be [1, height, width], in patches and multiples of {merge}.")
    return sides[0] // merge, sides[1] // merge


def _file(value: Any) -> Any:
    """Return the bytes behind base64; other values as they are."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong(f"{PARAM} is not base64.") from None


def _wrong(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, param="image")
