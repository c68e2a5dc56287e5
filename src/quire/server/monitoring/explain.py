"""`GET /explain`: why the server is slow, and what makes it faster."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from quire.explain.evidence import Evidence
from quire.explain.report import Report
from quire.server.contract import OF_ENGINE, contract
from quire.server.http.body import read_query
from quire.server.http.connection import while_connected
from quire.server.http.json_text import json_response
from quire.server.state import server_state

WINDOW = 5.0
LONGEST_WINDOW = 60.0


class ExplainQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Attributes:
    window: seconds.
    evidence: answer with what a report rests on; the client explains it.
    """

    window: Annotated[float, msgspec.Meta(ge=0.1, le=LONGEST_WINDOW)] = WINDOW
    evidence: bool = False


@contract(query=ExplainQuery, answer=(Report, Evidence), errors=OF_ENGINE)
async def explain_engine(request: Request) -> Response:
    """Watch the engine for `?window=` seconds, and report where its time goes."""
    from quire.server.monitoring import watch  # half of a room, which a start does not wait for

    query = read_query(request, ExplainQuery)
    engine = server_state(request).live_engine()
    # One at a time: a second one would take the first one's profile.
    turn: asyncio.Lock = request.app.state.explaining

    async def in_turn() -> Evidence:
        async with turn:
            return await watch.watch(engine, query.window, tls=request.url.scheme == "https")

    evidence = await while_connected(in_turn(), request.receive)
    return json_response(evidence if query.evidence else await watch.report_on(evidence))
