"""The report in a real browser: no request, no console message, no clipped text."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import trackside
from browser import CHROMIUM, Browser
from trackside.events import CounterWindow
from trackside.report import read_report, report_page

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]
WIDTHS = (400, 1_000, 1_600)

OVERLAPPING = """
[...document.querySelectorAll('.plot')].flatMap(plot => {
  const labels = [...plot.querySelectorAll('.y span, .axis, .tick')].filter(one => one.checkVisibility()).map(one => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return [one.textContent, range.getBoundingClientRect()];
  });
  return labels.flatMap(([text, one], place) => labels.slice(place + 1)
    .filter(([, other]) => one.left < other.right && other.left < one.right
                           && one.top + 2 < other.bottom && other.top + 2 < one.bottom)
    .map(([beside]) => [text, beside]));
})
"""
"""The pairs of labels of a chart that overlap; line boxes may touch by 2 px, which no letter does."""
# Elements outside of the window, or larger than their clipping parent; bars are clipped on purpose, for round corners.
CUT_OFF = """(() => {
  const cut = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) cut.push(`page ${document.documentElement.scrollWidth}`);
  for (const one of document.querySelectorAll('main, main *')) {
    if (one.closest('svg') && one.tagName !== 'svg') continue;
    const place = one.getBoundingClientRect();
    if (!place.width) continue;
    const name = `${one.tagName}.${one.className.baseVal ?? one.className} ${(one.textContent || '').slice(0, 40)}`;
    if (place.right > wide + 1 || place.left < -1) cut.push(`outside: ${name}`);
    const hides = getComputedStyle(one).overflowX !== 'visible' && !one.closest('.bar') && one.tagName !== 'svg';
    if (hides && one.scrollWidth > one.clientWidth + 1) cut.push(`clipped: ${name}`);
  }
  return cut;
})()"""
CHARTS = """['chart-goodput', 'chart-steps', 'chart-heatmap'].map(id => {
  const place = document.getElementById(id)?.getBoundingClientRect();
  return place ? [place.width > 200, place.height > 20] : null;
})"""


@trackside.event("test.batch.drawn", priority=trackside.ITERATION)
class Drawn(trackside.Event):
    """A batch was drawn."""

    duration_ns: int


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Give the pages of some generated jobs."""
    made_up = importlib.util.spec_from_file_location(
        "made_up", Path(__file__).resolve().parents[1] / "report" / "conftest.py"
    )
    jobs = importlib.util.module_from_spec(made_up)
    made_up.loader.exec_module(jobs)
    long_name = "a_section_with_a_name_that_no_one_would_give_it_" * 2
    wanted = {
        "healthy": jobs.MadeUpJob(),
        "restarts": jobs.MadeUpJob(killed_at=(130, 250), validate_every=50, validation_s=0.5),
        "wide": jobs.MadeUpJob(ranks=70, steps=60, session_tag=long_name, run_id=long_name, factor=slow),
    }
    found = {}
    for name, job in wanted.items():
        directory = tmp_path_factory.mktemp(name)
        page = directory / "report.html"
        page.write_text(report_page(read_report(job.write(directory / "runs"))), encoding="utf-8")
        found[name] = page
    return found


def slow(rank, step, part):
    return 2.5 if (rank, part) == (33, "model_forward") else 1.0


@pytest.mark.hang_guard(300)
class TestPage:
    @pytest.mark.parametrize("width", WIDTHS)
    @pytest.mark.parametrize("name", ["healthy", "restarts", "wide"])
    def test_opens(self, name, width, browser, pages):
        """It opens from disk: no request and no console message, the charts are there, and no text is clipped."""
        address = pages[name].as_uri()
        browser.resize(width, 900)
        browser.open(address)
        charts, cut = browser.evaluate(CHARTS), browser.evaluate(CUT_OFF)
        asked = {
            event["params"]["request"]["url"]
            for event in browser.events
            if event.get("method") == "Network.requestWillBeSent"
        }
        spoken = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        complaints = [event for event in browser.events if event.get("method") in spoken]

        assert asked - {address, "data:,"} == set()
        assert complaints == []
        assert charts == [[True, True]] * 3
        assert cut == []

    def test_own_values(self, browser, tmp_path):
        """On a phone a job's own values lie in the page, and their names are not broken."""
        with trackside.Bus() as bus:
            bus.subscribe(trackside.EventLog(tmp_path))
            for step in range(9):
                loss = 4.685 - step / 3
                window = {"start_ns": step, "end_ns": step + 1, "count": 1, "total_count": step + 1, "total_sum": loss}
                bus.log(CounterWindow(name="train.loss", unit="nats/char", values={"mean": loss}, **window))
                bus.log(Drawn(step=step, duration_ns=32_749_049 + step))
        page = tmp_path / "report.html"
        page.write_text(report_page(read_report(tmp_path)), encoding="utf-8")
        browser.resize(400, 900)
        browser.open(page.as_uri())
        names = browser.evaluate("[...document.querySelectorAll('td.name')].map(one => one.textContent)")
        heights = browser.evaluate("[...document.querySelectorAll('td.name')].map(one => one.clientHeight < 40)")
        assert {"train.loss", "duration_ns"} <= set(names)
        assert all(heights)
        assert browser.evaluate(CUT_OFF) == []

    @pytest.mark.parametrize("width", [420, 1400])
    @pytest.mark.parametrize("name", ["healthy", "restarts", "wide"])
    def test_labels(self, name, width, browser, pages):
        """The labels of a chart's axes lie beside one another, on a phone and on a screen."""
        browser.resize(width, 900)
        browser.open(pages[name].as_uri())
        assert browser.evaluate(OVERLAPPING) == []

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_contrast(self, scheme, browser, pages):
        """In light and in dark, text has enough contrast: by 4.5 to 1 at least, as WCAG asks."""
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.open(pages["restarts"].as_uri())
        colours = browser.evaluate(
            """['body', '#verdict .headline', '#verdict .summary', '.note', 'th', '.kind'].map(name => {
              const one = document.querySelector(name);
              let ground = one;
              while (getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
              return [name, getComputedStyle(one).color, getComputedStyle(ground).backgroundColor];
            })"""
        )
        browser.call("Emulation.setEmulatedMedia", features=[])
        assert [(name, colour, ground) for name, colour, ground in colours if contrast(colour, ground) < 4.5] == []

    def test_on_paper(self, browser, pages):
        """It can be printed, on a few pages."""
        browser.open(pages["restarts"].as_uri())
        pdf = browser.call("Page.printToPDF", printBackground=True)["data"]
        assert len(pdf) > 10_000


def contrast(one, other):
    """Return the contrast of two colours (WCAG 2.2, 1.4.3)."""

    def luminance(colour):
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        red, green, blue = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
