"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as in vLLM."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from quire.server.adapters import ServedAdapters
from quire.server.contract import OF_ENGINE, contract
from quire.server.errors import ApiError, invalid
from quire.server.http.body import read_request
from quire.server.rules import Strict
from quire.server.state import server_state

MAX_NAME = 256
"""Characters of an adapter's name."""


class LoadLoRAAdapterRequest(Strict):
    """POST /v1/load_lora_adapter."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None
    """Replace the adapter of this name, if there is one."""


class UnloadLoRAAdapterRequest(Strict):
    """POST /v1/unload_lora_adapter."""

    lora_name: str


_ERRORS = (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND, *OF_ENGINE)


@contract(body=LoadLoRAAdapterRequest, answer="text/plain", errors=_ERRORS)
async def load_lora_adapter(request: Request) -> Response:
    """Load an adapter from the operator's folder for adapters."""
    server = server_state(request)
    body = await read_request(request, LoadLoRAAdapterRequest)
    folder = _allowed(server.adapters)
    if not 0 < len(body.lora_name) <= MAX_NAME:
        raise invalid(f"lora_name must have 1 to {MAX_NAME} characters.", "lora_name")
    if body.lora_name in server.model_names:
        raise invalid(f"{body.lora_name!r} is the model itself.", "lora_name")
    path = confined(folder, body.lora_path)
    await server.adapters.load(
        server.live_engine(), body.lora_name, str(path), replace=bool(body.load_inplace)
    )
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@contract(body=UnloadLoRAAdapterRequest, answer="text/plain", errors=_ERRORS)
async def unload_lora_adapter(request: Request) -> Response:
    """Stop serving an adapter."""
    server = server_state(request)
    body = await read_request(request, UnloadLoRAAdapterRequest)
    _allowed(server.adapters)
    await server.adapters.unload(server.live_engine(), body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def confined(folder: Path, path: str) -> Path:
    """Return `path` inside `folder`, with links resolved.

    Raises:
        ApiError: 400 if it leads out of `folder`, or is no path.
    """
    try:
        found = (folder / path).resolve()
        inside = ".." not in Path(path).parts and found.is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):
        inside = False
    if not path or not inside:
        raise invalid(
            "lora_path must be a folder inside this server's folder for adapters.", "lora_path"
        )
    return found


def _allowed(adapters: ServedAdapters) -> Path:
    if adapters.folder is None:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "Adapters cannot be loaded or unloaded while this server runs; "
            "--lora-dir lets clients do so.",
            code="lora_updating_disabled",
        )
    return adapters.folder
