"""POST /sleep and /wake_up, GET /is_sleeping: free the model's memory, and load it again."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.core.errors import (
    EngineDeadError,
    EngineSleepingError,
    InvalidRequestError,
    QuireError,
)
from quire.server.contract import OF_ENGINE, contract
from quire.server.errors import ApiError, invalid
from quire.server.http.json_text import json_response
from quire.server.state import server_state

if TYPE_CHECKING:
    from quire.frontend.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

_ERRORS = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND, *OF_ENGINE)


class SleepState(msgspec.Struct):
    is_sleeping: bool


@contract(errors=_ERRORS)
async def sleep(request: Request) -> Response:
    """Free the weights and the KV cache; `level` is 1 or 2. Requests in progress end."""
    query = request.query_params
    engine = _engine(request)
    level = query.get("level", "1")
    if not (level.isascii() and level.isdigit()):
        raise invalid(f"level is {level!r}; it must be 1 or 2.", "level")
    await engine.sleep(int(level[:9]), query.get("mode", "abort"))
    return Response()


@contract(errors=_ERRORS)
async def wake_up(request: Request) -> Response:
    """Load the model again; answers when it is ready. `tags`: weights, kv_cache; all if none."""
    engine = _engine(request)
    try:
        await engine.wake_up(request.query_params.getlist("tags") or None)
    except InvalidRequestError:
        raise
    except QuireError as error:  # it may name files
        logger.error("the model cannot be loaded again: %s", error)
        raise ApiError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "The model cannot be loaded; the engine sleeps on. The server's log has the cause.",
            # A core that was lost meanwhile is not the end of the engine.
            code=EngineSleepingError.code if isinstance(error, EngineDeadError) else error.code,
        ) from error
    return Response()


@contract(answer=SleepState, errors=[HTTPStatus.NOT_FOUND])
async def is_sleeping(request: Request) -> Response:
    """Return whether the engine sleeps and refuses requests."""
    state = SleepState(await _engine(request).is_sleeping())
    return json_response(state)


def _engine(request: Request) -> AsyncLLM:
    engine = server_state(request).engine
    if not engine.args.enable_sleep_mode:
        raise ApiError(
            HTTPStatus.NOT_FOUND,
            f"{request.url.path} is off. Start the server with --enable-sleep-mode.",
        )
    return engine
