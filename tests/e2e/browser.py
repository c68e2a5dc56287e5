"""A headless Chromium that looks at the dashboard, and what it complained of."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 375, "height": 812}
PATIENCE = 120_000
"""Milliseconds; a busy machine draws slowly."""
expect.set_options(timeout=PATIENCE)

_WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
                          (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's own browser; nothing is downloaded."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium here: `apt-get install chromium` (or Google Chrome) brings one")
    sandbox = os.geteuid() != 0  # Chromium refuses to sandbox for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, chromium_sandbox=sandbox)
        yield browser
        browser.close()


@dataclass
class Dashboard:
    """The page in one window.

    Attributes:
        complaints: errors and warnings of the console, and exceptions.
    """

    page: Page
    context: BrowserContext
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


@contextmanager
def dashboard(
    browser: Browser, url: str, size: dict[str, int] = DESKTOP, scheme: str = "light"
) -> Iterator[Dashboard]:
    """The dashboard of the server at `url`; it must not complain of anything.

    Args:
        size: width and height of the window in CSS pixels.
        scheme: "light" or "dark".
    """
    context = browser.new_context(
        viewport={"width": size["width"], "height": size["height"]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(PATIENCE)
    context.add_init_script(_WATCH_POLICY)
    page = context.new_page()
    shown = Dashboard(page, context)
    page.on("pageerror", lambda error: shown.complaints.append(str(error)))
    page.on(
        "console",
        lambda m: shown.complaints.append(m.text) if m.type in ("error", "warning") else None,
    )
    page.goto(url)
    yield shown
    assert shown.complaints == []
    assert shown.violations() == []
    context.close()
