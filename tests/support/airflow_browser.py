"""A real browser, and one that is logged in to a real Airflow."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

# Without these options, Chromium contacts its vendor's servers at every start.
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Each window would also start two processes for the suggestions of its address bar, in 0.6 CPU
    # seconds. The option replaces Playwright's, whose features that use the network are therefore
    # here, too.
    "--disable-features=WebUIOmniboxPopup,WebUIOmniboxAimPopup"
    ",HttpsUpgrades,MediaRouter,NetworkTimeServiceQuerying,OptimizationHints,PreconnectToSearch",
]

TIMEOUT_MS = 120_000
"""How long a page may take. Pages load slowly beside other tests, and a long limit costs a quick page nothing."""
expect.set_options(timeout=TIMEOUT_MS)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium. Skips where it is not installed."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def open_airflow(browser: Browser, url: str, user: str, password: str) -> Page:
    """A page at Airflow's home, 1280 by 800, after logging in."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(TIMEOUT_MS)
    page.goto(url)
    page.locator("input[name=username]").fill(user)
    page.locator("input[name=password]").fill(password)
    page.locator("button[type=submit]").click()
    expect(page.get_by_role("link", name="Sluice")).to_be_visible()
    return page
