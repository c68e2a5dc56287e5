"""`quire bug-report`: collect data for a bug report in one file, without private data.

The file stays on this machine.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import platform
import re
import socket
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from quire import __version__
from quire.cli import config, doctor, serve
from quire.core.errors import ConfigError, QuireError
from quire.resolve.flags import Flags
from quire.system import env

LOG_BYTES = 2**20
"""Bytes to include from the end of each log."""
SERVER_SECONDS = 10.0
_OWN = ("output", "url", "log")
_OF_SERVER = ("version", "health", "ready", "load", "metrics", "explain?window=2")
_SECRETS = (
    re.compile(r"(?i)\bbearer\s+\S+|(?<=authorization: )basic\s+\S+"),
    re.compile(
        r"""(?i)[\w-]*(?:api[-_]?key|token|secret|password)["']?\s*[=:]\s*["']?[\w.~+/-]{8,}"""
    ),
    re.compile(r"(?i)--(?:api[-_]key|hf[-_]token)\s+\S+"),
    re.compile(r"\b(?:sk|hf|ghp|gho|xox[bp])[-_][\w-]{8,}"),
    re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"),
)
_PART = r"""/[^/\s'"<>|:,;(){}\[\]]+"""
_PATH = re.compile(rf"(?<![\w:/…])(?:~|{_PART})(?:{_PART})+")
_ADDRESS = re.compile(r"\b(?!127\.)(?:\d{1,3}\.){3}\d{1,3}\b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the report's flags, and all of `quire serve`, to `parser`."""
    add = Flags(parser)
    text = "the .zip to write (default: quire-bug-report-DATE.zip, here)"
    add("--output", None, text, type=Path)
    add("--url", None, "include the state of this running server", metavar="URL")
    text = "include the end of this log; repeatable"
    add("--log", [], text, type=Path, action="append", metavar="FILE")
    serve.add_arguments(parser)


def run(namespace: argparse.Namespace) -> int:
    """Write the file and list its contents.

    Raises:
        QuireError: it cannot be written.
    """
    path = namespace.output or Path(time.strftime("quire-bug-report-%Y%m%d-%H%M%S.zip"))
    keys = [value for name, value in env.given().items() if name.endswith("_KEY")]
    redact = redactor([*keys, *(namespace.api_key or ())])
    try:
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as bundle:
            for name, text in contents(namespace):
                bundle.writestr(name, redact(text))
                print(f"  {name}", file=sys.stderr)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be written: {error.strerror}.", param="--output"
        ) from None
    print(
        "Keys, folders, addresses and the names of this machine and its user were removed. "
        "Check the file before you attach it; nothing was sent.",
        file=sys.stderr,
    )
    print(path)
    return 0


def contents(namespace: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield file names and texts; the text of missing data is the error."""
    yield "machine.json", _json(_machine())
    yield "doctor.json", _json(_or_why(lambda: _doctor(namespace)))
    yield "config.json", _json(_or_why(lambda: _config(namespace)))
    for path in namespace.log:
        yield f"log/{path.name}", str(_or_why(lambda path=path: _end_of(path)))  # type: ignore[misc]
    if namespace.url:
        base = namespace.url.rstrip("/").removesuffix("/v1")
        for page in _OF_SERVER:
            name = f"server/{page.partition('?')[0]}.txt"
            yield name, str(_or_why(lambda page=page: _page(f"{base}/{page}")))  # type: ignore[misc]


def redactor(secrets: Sequence[str] = ()) -> Callable[[str], str]:
    """Return a function that removes secrets, addresses and names of folders, host and user from a
    text.

    Args:
        secrets: removed wherever they appear, as is any text that looks like one.
    """
    words = {socket.gethostname(): "HOST"}
    with suppress(OSError, KeyError):  # a container's user without a name
        words[getpass.getuser()] = "USER"
    names = [
        (re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])"), shown)
        for word, shown in words.items()
        if len(word) > 2 and word not in ("root", "localhost")
    ]

    def redact(text: str) -> str:
        for known in filter(None, secrets):
            text = text.replace(known, "[hidden]")
        for pattern in _SECRETS:
            text = pattern.sub("[hidden]", text)
        text = _PATH.sub(lambda found: f"…/{found[0].rpartition('/')[2]}", text)
        text = _ADDRESS.sub("[address]", text)
        for word, shown in names:
            text = word.sub(shown, text)
        return text

    return redact


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n"


def _or_why(what: Callable[[], Any]) -> Any:
    try:
        return what()
    except (QuireError, OSError, ValueError) as error:
        return f"not available: {type(error).__name__}: {error}"


def _machine() -> dict[str, Any]:
    keys = {name for name in env.given() if name.endswith("_KEY")}
    return {
        "quire": __version__,
        "python": sys.version,
        "platform": platform.platform(),
        "libc": " ".join(platform.libc_ver()),
        "cpus": os.cpu_count(),
        "environment": {k: "[hidden]" if k in keys else v for k, v in env.given().items()},
        "packages": dict(sorted((d.metadata["Name"], d.version) for d in distributions())),
    }


def _doctor(namespace: argparse.Namespace) -> list[dict[str, Any]]:
    return [asdict(finding) for finding in doctor.examine(namespace.host, namespace.port)]


def _config(namespace: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the configuration for the given flags, as `quire config --json` prints it."""
    return [asdict(value) for value in config.values(namespace) if value.name not in _OWN]


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        return file.read().decode(errors="replace")


def _page(url: str) -> str:
    try:
        asked = urllib.request.Request(url, headers=env.key_header())
        with urllib.request.urlopen(asked, timeout=SERVER_SECONDS) as answer:
            body: bytes = answer.read()
            return body.decode(errors="replace")
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read(LOG_BYTES).decode(errors='replace')}"
