"""The docs: sizes that keep them readable, a design page per room, and names that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from quire.cli.main import COMMANDS
from quire.cli.parser import Parser
from quire.core.errors import ConfigError

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "quire"
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
DESIGN = [ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/design/*.md")]
GUIDES = [page for page in PAGES if page.name not in ("CHANGELOG.md", "newcomer.md")]
"""Pages of the present version, without the one that `make newcomer` writes."""


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


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_commands_have_the_flags_that_pages_use(page: Path, tmp_path: Path) -> None:
    (settings := tmp_path / "settings.yaml").write_text("max-num-seqs: 8\n")
    for command in _commands(page.read_text()):
        name = next(name for name in (" ".join(command[:2]), command[0]) if name in COMMANDS)
        words = command[len(name.split()) :]
        if "--config" in words:
            words[words.index("--config") + 1] = str(settings)
        try:
            _parser(name).parse(words)
        except (SystemExit, ConfigError):
            pytest.fail(f"{page.name}: quire {shlex.join(command)}")


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_what_pages_name_exists(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"(?<![\w/])(?:tests|benchmarks|tools|deploy)/[\w./-]+\.\w+", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"-m ((?:tests|benchmarks|tools)(?:\.\w+)+)(?![\w.…])", text):
        file = ROOT / name.replace(".", "/")
        assert file.with_suffix(".py").exists() or (file / "__main__.py").exists(), name
    for name in re.findall(r"\b(?:quire|vllm):[a-z]+_[a-z_]+|\bQUIRE_[A-Z_]+", text):
        known = {name, name.removesuffix("_total"), name.partition(":")[2]}
        assert any(each in _sources() for each in known if each), f"{page.name} names {name}"


@cache
def _parser(command: str) -> Parser:
    """Return the parser of a command, as `quire COMMAND` makes it."""
    parser = Parser(prog=f"quire {command}")
    import_module(COMMANDS[command][0]).add_arguments(parser)
    return parser


@cache
def _sources() -> str:
    folders = [ROOT / name for name in ("src", "csrc", "tests")]
    files = [file for kind in ("py", "cpp") for each in folders for file in each.rglob(f"*.{kind}")]
    return "".join(file.read_text() for file in [*files, ROOT / "CMakeLists.txt"])


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the words behind `quire` of each command in a block of code, if it is no mistake."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if language not in ("console", "bash", ""):
            continue
        flags = re.search(r'^FLAGS="(.*)"$', block, re.MULTILINE)
        lines = block.replace("\\\n", " ").replace("$FLAGS", flags[1] if flags else "").split("\n")
        prompt = r"\$ " if "\n$ " in f"\n{block}" else ""
        for number, line in enumerate(lines):
            found = re.match(rf"{prompt}quire (?=[a-z])(.*)", line)
            if found is None or lines[number + 1].startswith("error:"):
                continue
            written = re.sub(r"\s# .*", "", found[1])
            while written.count("'") % 2:  # the rest of JSON
                written += lines[(number := number + 1)]
            words = shlex.split(written)
            ends = [at for at, word in enumerate(words) if word in ("|", "&", ";", ">")]
            yield words[: min(ends, default=len(words))]


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
