"""A headless Chromium that looks at the dashboard, and what it complained of."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import pytest
from playwright.sync_api import (
    ConsoleMessage,
    Error,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

NAMES = ("chromium", "chromium-browser", "google-chrome")
DESKTOP: ViewportSize = {"width": 1440, "height": 900}
PHONE: ViewportSize = {"width": 375, "height": 812}
PATIENCE = 120_000
"""Milliseconds; a busy machine draws slowly."""
expect.set_options(timeout=PATIENCE)
_NUMBERS = itertools.count()

_WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
                          (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


@contextmanager
def chromium() -> Iterator[Page]:
    """A page of the system's own browser; nothing is downloaded.

    One for all tests: Chromium starts processes of its own with each new window.
    """
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: `apt-get install chromium` (or Google Chrome) brings one")
    sandbox = os.geteuid() != 0  # Chromium refuses to sandbox for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox)
        page = browser.new_page(reduced_motion="reduce")
        page.set_default_timeout(PATIENCE)
        page.add_init_script(_WATCH_POLICY)
        yield page
        browser.close()


@dataclass
class Dashboard:
    """The page, opened anew.

    Attributes:
        complaints: errors and warnings of the console, and exceptions.
    """

    page: Page
    complaints: list[str] = field(default_factory=list)

    def show(self, tab: str) -> None:
        self.page.click(f"#tab-{tab}")
        self.page.evaluate("scrollTo(0, 0)")

    def violations(self) -> list[str]:
        return list(self.page.evaluate("window.violations"))

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(script))

    def on_error(self, error: Error) -> None:
        self.complaints.append(str(error))

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@contextmanager
def dashboard(
    page: Page, url: str, size: ViewportSize = DESKTOP, scheme: Literal["light", "dark"] = "light"
) -> Iterator[Dashboard]:
    """The dashboard of the server at `url`; it must not complain of anything.

    Args:
        size: width and height of the window in CSS pixels.
    """
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=scheme)
    shown = Dashboard(page)
    page.on("pageerror", shown.on_error)
    page.on("console", shown.on_console)
    address, _, tab = url.partition("#")
    page.goto(f"{address}?{next(_NUMBERS)}#{tab}")  # another tab alone would load nothing
    try:
        yield shown
        assert shown.complaints == []
        assert shown.violations() == []
    finally:
        page.remove_listener("pageerror", shown.on_error)
        page.remove_listener("console", shown.on_console)
        page.unroute_all(behavior="ignoreErrors")
