"""The docs: sizes that keep them readable, links and paths that exist, a design page per room."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "quire"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
DESIGN = [ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/design/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(#[^)\s]*)?\)", text):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor[1:] in _anchors(linked.read_text()), f"{page.name}: {target}{anchor}"


@pytest.mark.parametrize("page", DESIGN, ids=lambda page: page.name)
def test_files_that_the_design_names_exist(page: Path) -> None:
    for name in re.findall(r"`([a-z_]+/[\w/.]+?)/?`", page.read_text()):
        file = re.sub(r"\.[A-Z].*$", "", name.removeprefix("quire/"))
        found = any(any(base.glob(f"{file}*")) for base in (SOURCE, ROOT))
        assert found, f"{page.name} names {name}"


def test_the_map_is_short_and_has_every_room_and_page() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.split()) <= 1500
    aliases = {"assets", "entrypoints", "utils", "v1"}
    rooms = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()} - aliases
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == rooms
    linked = set(re.findall(r"docs/design/([\w-]+)\.md", text))
    assert linked == {page.stem for page in ROOT.glob("docs/design/*.md")}


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def _anchors(text: str) -> set[str]:
    """Anchors of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
