"""The dashboard: static files of the package, under a policy that allows nothing else.

All files are read once, when the application is made, and found by their whole name, so that no
request reaches the disk. `web/` holds their sources.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "dashboard"
PAGE_PATH = "/"
ASSETS_PATH = "/dashboard/assets/"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
_PAGE_FILE = "index.html"


def page_routes() -> list[Route]:
    """Return the page at `/` and its files, whose names change with their content."""
    files = {p.name: p.read_bytes() for p in FOLDER.iterdir() if p.suffix in _TYPES}
    compressed = lru_cache(lambda name: gzip.compress(files[name], mtime=0))

    async def show_page(request: Request) -> Response:
        return respond(request, _PAGE_FILE, "no-cache")

    async def show_asset(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files or name == _PAGE_FILE:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return respond(request, name, "public, max-age=31536000, immutable")

    def respond(request: Request, name: str, cache_control: str) -> Response:
        headers, content = {**_HEADERS, "Cache-Control": cache_control}, files[name]
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["Content-Encoding"] = compressed(name), "gzip"
        return Response(content, headers=headers, media_type=_TYPES[Path(name).suffix])

    return [
        Route(PAGE_PATH, show_page, include_in_schema=False),
        Route(ASSETS_PATH + "{name}", show_asset, include_in_schema=False),
    ]


def is_static(path: str) -> bool:
    """Return whether `path` is the page or one of its files, which reveal nothing about this
    server."""
    return path == PAGE_PATH or path.startswith(ASSETS_PATH)
