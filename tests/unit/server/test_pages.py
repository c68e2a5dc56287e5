"""The page's files: whole, from the sources at hand, served safely and cheaply."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from quire.explain.report import Change
from quire.server.monitoring.pages import ASSETS_PATH, FOLDER
from tests.unit.server.fake_engine import Running, running

WEB = Path(__file__).resolve().parents[3] / "web"
MANIFEST = json.loads((FOLDER / "manifest.json").read_text())
ASSETS = [name for name in MANIFEST["files"] if name != "index.html"]
REBUILD = "the built page is not that of web/; run `make web` and commit both"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_the_built_files_are_those_of_the_sources() -> None:
    names = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"]
    in_src = [p.relative_to(WEB).as_posix() for p in (WEB / "src").rglob("*") if p.is_file()]
    lines = [f"{sha256((WEB / name).read_bytes())}  {name}\n" for name in names + sorted(in_src)]
    assert MANIFEST["sources"] == sha256("".join(lines).encode()), REBUILD


def test_the_page_knows_the_fields_of_a_change() -> None:
    """Seen: the page printed the lower end of a range as its middle."""
    types = (WEB / "src/types.ts").read_text().split("export interface Change {")[1]
    names = re.findall(r"^  (\w+): ", types.split("}")[0], re.MULTILINE)
    assert {*names} == {*Change.__struct_fields__} - {"fields"}
    assert "at least" in next(FOLDER.glob("app-*.js")).read_text()


def test_nobody_has_touched_the_built_files() -> None:
    found = {p.name: sha256(p.read_bytes()) for p in FOLDER.iterdir()}
    del found["manifest.json"]
    assert found == MANIFEST["files"], REBUILD


def test_the_page_is_small_and_needs_nothing_from_elsewhere() -> None:
    assert sum(len(gzip.compress((FOLDER / name).read_bytes())) for name in ASSETS) < 150_000
    page = (FOLDER / "index.html").read_text()
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert {link.removeprefix(ASSETS_PATH) for link in links} < set(ASSETS)
    assert "style=" not in page
    assert not re.search(r"<script[^>]*>[^<]", page)
    style = next(FOLDER.glob("style-*.css")).read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_licences_of_bundled_libraries() -> None:
    notice = (FOLDER / "NOTICE.txt").read_text()
    for library in json.loads((WEB / "package.json").read_text())["dependencies"]:
        assert library in notice
    assert notice.count("Permission is hereby granted") == 2


async def test_the_page_and_its_policy(app: Running) -> None:
    page = await app.http.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    head = await app.http.head("/")
    assert head.status_code == 200
    assert head.headers["content-length"] == page.headers["content-length"]


@pytest.mark.parametrize("name", ASSETS)
async def test_assets(name: str, app: Running) -> None:
    response = await app.http.get(ASSETS_PATH + name)
    assert response.status_code == 200
    assert response.content == (FOLDER / name).read_bytes()
    assert response.headers["content-encoding"] == "gzip"
    assert "immutable" in response.headers["cache-control"]
    assert response.headers["content-type"].split(";")[0] in {
        "text/javascript",
        "text/css",
        "text/plain",
        "image/svg+xml",
    }
    plain = await app.http.get(ASSETS_PATH + name, headers={"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == response.content


@pytest.mark.parametrize(
    "path",
    ["", "nothing.js", "../pages.py", "..%2fpages.py", "%2e%2e/pages.py", "%00", "manifest.json"],
)
async def test_nothing_but_its_files(path: str, app: Running) -> None:
    response = await app.http.get(ASSETS_PATH + path)
    assert response.status_code == 404
    assert "error" in response.json()


async def test_the_page_needs_no_key_but_everything_else_does() -> None:
    async with running(api_keys=["secret"]) as app:
        assert (await app.http.get("/")).status_code == 200
        for name in ASSETS:
            assert (await app.http.get(ASSETS_PATH + name)).status_code == 200
        for path in ["/dashboard", "/dashboard/assets", "/dashboard/stream", "/metrics"]:
            assert (await app.http.get(path)).status_code == 401, path
