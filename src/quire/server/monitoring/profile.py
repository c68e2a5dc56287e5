"""POST /start_profile, /stop_profile and /profile_ops."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.core.op_profile import OpProfile
from quire.frontend.client.profiling import ProfilerBusyError
from quire.server.contract import OF_ENGINE, contract
from quire.server.errors import ApiError
from quire.server.http.body import read_request
from quire.server.http.json_text import json_response
from quire.server.state import server_state

_ERRORS = (HTTPStatus.CONFLICT, *OF_ENGINE)


class OpProfileRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Attributes:
    steps: to profile.
    timeout_s: answer with fewer when it has passed; an idle engine makes no steps.
    """

    steps: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50
    timeout_s: Annotated[float, msgspec.Meta(ge=0.1, le=30.0)] = 5.0


class ProfileStatus(msgspec.Struct, omit_defaults=True):
    """Attributes:
    files: of the profile, once it has stopped; none if no step was computed meanwhile.
    """

    status: str
    files: list[str] | None = None


@contract(answer=ProfileStatus, errors=_ERRORS)
async def start_profile(request: Request) -> Response:
    """Record the next steps; 409 if a recording is running."""
    if not await server_state(request).live_engine().profiling.start():
        raise ApiError(
            HTTPStatus.CONFLICT,
            "A profile is being recorded already; POST /stop_profile ends it.",
            code="profiler_busy",
        )
    return json_response(ProfileStatus("recording"))


@contract(answer=ProfileStatus, errors=_ERRORS)
async def stop_profile(request: Request) -> Response:
    """End the recording and wait for its files, in the operator's folder."""
    files = await server_state(request).live_engine().profiling.stop()
    return json_response(ProfileStatus("stopped", files))


@contract(body=OpProfileRequest, answer=OpProfile, errors=[HTTPStatus.CONFLICT, *OF_ENGINE])
async def profile_ops(request: Request) -> Response:
    """Time each op of the next steps (an `OpProfile`); 409 while another one is running."""
    server = server_state(request)
    engine = server.live_engine()
    wanted = await read_request(request, OpProfileRequest)
    try:
        profile = await engine.profiling.ops(wanted.steps, wanted.timeout_s)
    except ProfilerBusyError as error:
        raise ApiError(HTTPStatus.CONFLICT, str(error), code=error.code) from None
    return json_response(profile)
