"""The dashboard: static files of the package, under a policy that allows nothing else.

All files are read once, when the application is made, and found by their whole name, so that no
request reaches the disk. `web/` holds their sources.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cached_property
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.system.records import dataclass

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
_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
_FOREVER = "public, max-age=31536000, immutable"


def page_routes() -> list[Route]:
    """Return the page at `/` and its files, whose names change with their content."""
    page, *assets = _read_files()

    async def show_page(request: Request) -> Response:
        return page.response(request, "no-cache")

    by_name = {asset.name: asset for asset in assets}

    async def show_asset(request: Request) -> Response:
        asset = by_name.get(request.path_params["name"])
        if asset is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return asset.response(request, _FOREVER)

    return [
        Route(PAGE_PATH, show_page, include_in_schema=False),
        Route(ASSETS_PATH + "{name}", show_asset, include_in_schema=False),
    ]


def is_static(path: str) -> bool:
    """Return whether `path` is the page or one of its files, which reveal nothing about this
    server."""
    return path == PAGE_PATH or path.startswith(ASSETS_PATH)


@dataclass(frozen=True)
class _File:
    name: str
    content: bytes

    @cached_property
    def etag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    def response(self, request: Request, cache_control: str) -> Response:
        headers = {**_HEADERS, "ETag": self.etag, "Cache-Control": cache_control}
        known = request.headers.get("if-none-match", "")
        if self.etag in (tag.strip().removeprefix("W/") for tag in known.split(",")):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content = self.compressed
            headers["Content-Encoding"] = "gzip"
        return Response(content, headers=headers, media_type=_TYPES[Path(self.name).suffix])


def _read_files() -> list[_File]:
    """Return the files, the page first."""
    names = sorted(p.name for p in FOLDER.iterdir() if p.suffix in _TYPES)
    names.remove("index.html")
    return [_File(name, (FOLDER / name).read_bytes()) for name in ["index.html", *names]]
