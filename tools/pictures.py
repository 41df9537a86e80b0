"""Draw the report and `top` of a recorded job for the documentation: docs/report.png and docs/top.svg."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from trackside.handlers import replay
from trackside.report import Top, read_report, report_page
from trackside.report.rich import top_svg

DOCS = Path(__file__).resolve().parents[1] / "docs"
SIZE = "1100,1420"
"""Of the part of the page that is shown, in pixels: the verdict, where the time went, and the chart of steps."""


def main() -> int:
    """Draw both pictures; the report's needs Chromium."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", metavar="RUNS", help="the logs of a job, such as make demo leaves below runs/")
    path = parser.parse_args().path

    top, events = Top(), list(replay(path))
    first_ns, last_ns = events[0].at_ns, events[-1].at_ns
    until_ns = first_ns + (last_ns - first_ns) * 9 // 10  # while the job still runs
    for event in events:
        if event.at_ns <= until_ns:
            top.drive(event)
    # Its processes, which were of this machine, ended long ago.
    with patch("trackside.report._top.is_gone", return_value=False):
        view = top.view(until_ns)
    (DOCS / "top.svg").write_text(top_svg(view, width=100, height=26), encoding="utf-8")

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        print("docs/top.svg is drawn; docs/report.png needs chromium: python3 tools/servers.py chromium")
        return 1
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "report.html"
        page.write_text(report_page(read_report(path)), encoding="utf-8")
        shot = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}"]
        target = f"--screenshot={DOCS / 'report.png'}"
        subprocess.run(
            [browser, *shot, f"--user-data-dir={scratch}", target, page.as_uri()],
            check=True,
            timeout=120,
            stderr=subprocess.DEVNULL,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
