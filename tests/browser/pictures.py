"""Makes pictures of all views of the page: `make pictures`.

Each view is pictured at 1,280 and 400 px, light and dark, for a fresh demo and for seven, sixty and
three hundred pipelines. Nothing else is needed: the pipelines have a made history, without Airflow
and without a broker. Prints the weight and the time of each scene's first view.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from playwright.sync_api import Browser, Page, expect

from sluice.api import services
from sluice.api.routes import dead_letter_routes
from tests.browser import gallery, letters
from tests.support.airflow_browser import chromium
from tests.support.ports import free_port
from tests.support.server_thread import ServerThread

VIEWS = {
    "overview": "#/",
    "pipeline": "#/pipelines/orders",
    "hour": "#/pipelines/orders?range=hour",
    "topology": "#/pipelines/orders/topology?node=6",
    "runs": "#/pipelines/orders/runs",
    "run": "#/pipelines/orders/runs?run=manual__2",
    "pipeline-stores": "#/pipelines/orders/stores",
    "dead-letters": "#/pipelines/orders/dead-letters?reason=contract&step=",
    "costs": "#/costs?days=30",
    "shards": "#/pipelines/orders/shards",
    "activity": "#/pipelines/orders/activity",
    "stores": "#/stores",
    "windows": "#/pipelines/orders/stores/general_orders_count_window",
    "values": "#/pipelines/orders/stores/general_orders_revenue",
    "key": "#/pipelines/orders/stores/general_orders_revenue?key=store_1234&history=1",
}
OF_SCENE = {
    "demo": {"overview": "#/", "not-started": "#/pipelines/pos"},
    "7": VIEWS,
    "60": {
        "costs": "#/costs",
        "overview": "#/",
        "by-tag": "#/?group=tag",
        "failing": "#/pipelines/stock_000",
        "lagging": "#/pipelines/invoices_001",
    },
    "300": {"overview": "#/"},
}


def main() -> None:
    """Make the pictures in the folder that is the argument."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--scenes", nargs="*", default=[*OF_SCENE])
    chosen = arguments.parse_args()
    dead_letter_routes.find_dead_letters = letters.find  # type: ignore[assignment, attr-defined]
    with chromium() as browser:
        for name in chosen.scenes:
            for view in pictures(browser, name, chosen.folder):
                print(view, flush=True)


def pictures(browser: Browser, name: str, folder: Path) -> Iterator[str]:
    """Make the pictures of one scene; yield a line about each view."""
    data = Path(tempfile.mkdtemp())
    scene = gallery.demo(data) if name == "demo" else gallery.many(data, int(name))
    services.read_lag = scene.read_lag  # type: ignore[assignment, attr-defined]
    port = free_port()
    server = uvicorn.Config(scene.api.app, port=port, log_level="error", lifespan="off")
    try:
        with ServerThread(server):
            for width in (1280, 400):
                for scheme in ("light", "dark"):
                    page = browser.new_page(
                        viewport={"width": width, "height": 800},
                        color_scheme="dark" if scheme == "dark" else "light",
                    )
                    page.add_init_script(_NOTE_WHEN_SHOWN)
                    for view, part in OF_SCENE[name].items():
                        target = folder / f"{name}-{view}-{width}-{scheme}.png"
                        weight, seconds = picture(
                            page, f"http://127.0.0.1:{port}/sluice/{part}", target
                        )
                        yield f"{target.name}: {weight / 1000:.0f} kB in {seconds * 1000:.0f} ms"
                    page.close()
    finally:
        shutil.rmtree(data, ignore_errors=True)


_NOTE_WHEN_SHOWN = """
new MutationObserver((_changes, observer) => {
  if (!document.querySelector("main h1")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => {
    document.documentElement.dataset.shownAt = performance.now();
  }));
}).observe(document, { childList: true, subtree: true });
"""
"""Notes at the root of a page when its heading has been painted, in ms since it was asked for."""


def picture(page: Page, address: str, target: Path) -> tuple[int, float]:
    """Picture a view; return its bytes and the seconds until its heading was visible."""
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("main h1")).to_be_visible()
    root = page.locator("html[data-shown-at]")
    root.wait_for(state="attached")
    seconds = float(root.get_attribute("data-shown-at") or 0) / 1000
    # Charts are drawn when they have a size.
    page.wait_for_timeout(500)
    weight: int = page.evaluate(
        "performance.getEntries().reduce((sum, entry) => sum + (entry.decodedBodySize ?? 0), 0)"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=target, full_page=True)
    return weight, seconds


if __name__ == "__main__":
    main()
