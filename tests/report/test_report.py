"""The contents of a report; text, page and JSON only show them."""

from __future__ import annotations

import html
import json
import re
import time
from types import SimpleNamespace

import attrs
import pytest

from framing import write_log
from trackside.events import (
    ConfigError,
    ConfigLogged,
    CounterWindow,
    ExceptionRaised,
    IterationEnded,
    MetricsLogged,
    Source,
    SourceEnded,
    SpanEnded,
    UnknownEvent,
    UnreadableError,
)
from trackside.handlers.models.scores import Straggler
from trackside.report import read_report, report_page
from trackside.report._build import Episodes, late_by_windows
from trackside.report._html import heat
from trackside.report._plain_text import report_lines
from trackside.report._report import CounterRow, Heatmap, Part
from trackside.report._verdict_rules import listed, lost_words, whole_step_words

pytestmark = pytest.mark.once

S = 10**9
START_NS = 1_700_000_000 * S
HOSTILE = '<script>alert("1")</script><img src=x onerror=a>&\x1b[2J'


@pytest.fixture
def local_zone():
    """Give a function that sets the zone of the machine, until the test ends."""
    with pytest.MonkeyPatch.context() as patch:

        def set_zone(name):
            patch.setenv("TZ", name)
            time.tzset()

        yield set_zone
    time.tzset()


@pytest.fixture
def hostile(tmp_path, write_events):
    """Give the log of a job that puts markup and control characters wherever a log holds text."""
    common = {"at_ns": START_NS}
    error = {"type": HOSTILE, "message": HOSTILE}
    events = [
        SpanEnded(step=0, span_id=2, parent_span_id=1, name=HOSTILE, duration_ns=S, error=error, **common),
        IterationEnded(step=0, span_id=1, duration_ns=S, **common),
        CounterWindow(
            step=0, name=HOSTILE, unit=HOSTILE, start_ns=START_NS, end_ns=START_NS, count=1, values={"mean": 1.0},
            total_count=1, total_sum=1.0, **common,
        ),
    ]  # fmt: skip
    reported = {
        "run_id": HOSTILE,
        "session_tag": HOSTILE,
        "host": HOSTILE,
        "application": HOSTILE,
        "perf_tags": (HOSTILE,),
    }
    write_events(tmp_path, Source(id="0001", **reported), events)
    return tmp_path


@pytest.fixture(scope="module")
def page(make_job, tmp_path_factory):
    """Give the page of a job with two attempts."""
    return report_page(read_report(make_job(killed_at=(130,)).write(tmp_path_factory.mktemp("job"))))


class TestReport:
    def test_attempts(self, made_up):
        """Each attempt's buckets add up to its time, and all of them to the session's."""
        report = read_report(made_up(killed_at=(130, 250)))
        assert [bar.number for bar in report.attempts] == [0, 1, 2]
        for bar in report.attempts:
            assert sum(bar.buckets_s.values()) == pytest.approx((bar.end_ns - bar.start_ns) / S)
        whole = sum(sum(bar.buckets_s.values()) for bar in report.attempts)
        assert whole == pytest.approx(report.goodput.elapsed_s)

    def test_first_out(self, made_up):
        """Of an attempt that did not end well, the rank that fell silent first is named."""
        report = read_report(made_up(killed_at=(130,)))
        assert (report.attempts[0].first_out.rank, report.attempts[1].first_out) == (1, None)

    def test_identity(self, made_up):
        """Ranks, hosts, the application and the end are those of the log."""
        report = read_report(made_up())
        reported = (report.session, report.application, report.ranks_total, report.hosts, report.state)
        assert reported == ("made-up", "made-up", 4, 2, "ended")

    def test_parts(self, made_up):
        """The parts of a step are the generated ones, on average over ranks and steps: 40 and 60 of 112 ms."""
        parts = {part.name: part for part in read_report(made_up(stumbles=0)).parts}
        assert parts["model_forward"].mean_ns == pytest.approx(40e6, rel=0.01)
        assert parts["model_backward"].share == pytest.approx(60 / 112, rel=0.02)
        assert parts["all_reduce"].kind == "waiting"

    @pytest.fixture
    def compiled(self, made_up):
        """Give the report on a rank whose forward pass takes 10 s in step 0 and 10 ms later, of steps of 60 ms."""

        def factor(_rank, step, part):
            return 1000.0 if (step, part) == (0, "model_forward") else 1.0

        steady = {"ranks": 1, "loading_s": 0.0, "reduce_s": 0.0, "noise": 0.0, "stumbles": 0.0, "fetch_s": 0.05}
        return read_report(made_up(forward_s=0.01, backward_s=0.0, factor=factor, **steady))

    def test_parts_without_the_first_step(self, compiled):
        """A compilation in step 0 is no part of a usual step: 10 of 60 ms are its forward pass."""
        parts = {part.name: part.share for part in compiled.parts}
        assert parts["model_forward"] == pytest.approx(1 / 6, rel=0.01)
        assert "60 ms, the mean step, starting up left out" in self.text_of(compiled)

    def test_bound_without_the_first_step(self, compiled):
        """Such a job is bound by its input, which takes 50 of 60 ms."""
        assert "Steps are input-bound: 83 % of one is fetch." in compiled.verdict.summary

    def test_input_beside_the_first_step(self, compiled):
        """The input of 300 steps takes 300 × 50 ms, whatever step 0 compiles."""
        (found,) = [one for one in compiled.verdict.findings if one.kind == "input-bound"]
        assert found.cost_s == pytest.approx(15.0, rel=0.01)

    def test_growth_without_the_first_step(self, made_up):
        """A forward pass of 40 ms that takes 60 ms from step 150 on grew by that, whatever step 0 compiles."""

        def factor(_rank, step, part):
            return (250.0 if step == 0 else 1.5 if step >= 150 else 1.0) if part == "model_forward" else 1.0

        found = read_report(made_up(ranks=1, factor=factor, noise=0.0, stumbles=0.0)).slowdown
        assert (found.part, round(found.part_before_ns / 1e6), round(found.part_after_ns / 1e6)) == (
            "model_forward", 40, 60,
        )  # fmt: skip

    def test_parts_of_one_step(self, made_up):
        """A job of one step has the parts of that one."""
        report = read_report(made_up(ranks=1, steps=1, noise=0.0, stumbles=0.0))
        assert {part.name: round(part.mean_ns / 1e6) for part in report.parts}["model_forward"] == 40
        assert "starting up" not in whole_step_words(report)

    def test_listed(self, made_up):
        """Of more than three parts of a kind the shares that are listed add up to the kind's."""
        names = ("model_backward", "model_forward", "optimizer_update", "zero_grad", "gpu")
        parts = [
            Part(name=name, kind="compute", mean_ns=share * 1e8, share=share)
            for name, share in zip(names, (0.47, 0.31, 0.06, 0.04, 0.02), strict=True)
        ]
        report = attrs.evolve(read_report(made_up(steps=30)), parts=tuple(parts))
        assert listed(report, "compute") == "model_backward 47 %, model_forward 31 %, optimizer_update 6 %, 2 more 6 %"

    def text_of(self, report):
        """Return the report as plain text, each paragraph in one line."""
        return "\n".join("".join(part for part, _ in line) for line in report_lines(report, 300))

    def test_longest_step(self, made_up):
        """The longest step is in the timeline, with its number and rank."""
        report = read_report(made_up(factor=lambda rank, step, part: 50.0 if (rank, step) == (3, 77) else 1.0))
        _, longest = max(report.steps, key=lambda point: point[1].high)
        assert (longest.high_step, longest.high > 4 * S) == (77, True)

    def test_session(self, made_up):
        """Of several sessions the latest is shown, unless the caller asks for another one."""
        made_up("all/a", ranks=1, steps=30, session_tag="a", run_id="a")
        directory = made_up("all/b", ranks=1, steps=30, session_tag="b", run_id="b", seed=1).parent
        chosen = read_report(directory, session="a")
        assert (chosen.session, chosen.others) == ("a", ("b",))

    def test_no_such_session(self, made_up):
        """A session that does not exist is an error that lists the existing ones."""
        with pytest.raises(ConfigError, match="made-up"):
            read_report(made_up(ranks=1, steps=30), session="x")

    def test_missing_events(self, made_up, tmp_path):
        """Damage and losses in the files are reported, and the rest is read."""
        directory = made_up(ranks=1, steps=2_000)
        (path,) = directory.rglob("*.tslog")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        report = read_report(directory)
        assert report.losses.damaged_bytes > 0
        assert report.losses.missing > 0
        assert f"{report.losses.total:,} events missing" in report.verdict.summary

    def test_of_nobody(self, tmp_path):
        """A directory without logs is an error."""
        with pytest.raises(UnreadableError):
            read_report(tmp_path)

    def test_json(self, made_up):
        """The report is JSON."""
        reported = json.loads(json.dumps(read_report(made_up(ranks=2)).to_json(), allow_nan=False))
        assert reported["verdict"]["headline"] == "Nothing stands out."
        assert {"attempts", "steps", "heatmap", "spans", "counters", "losses", "goodput"} <= set(reported)

    def test_json_of_parts(self, made_up):
        """In JSON a late rank has its steps, and an attempt its goodput."""
        report = read_report(
            made_up(factor=lambda rank, step, part: 2.0 if (rank, part) == (2, "model_forward") else 1.0)
        )
        reported = json.loads(json.dumps(report.to_json(), allow_nan=False))
        assert {row["rank"]: row["steps"] for row in reported["late"]} == {2: 299}  # the first step is not compared
        assert [row["goodput"] for row in reported["attempts"]] == [
            pytest.approx(bar.goodput) for bar in report.attempts
        ]

    def test_progress(self, made_up):
        """Progress of the reading is reported."""
        reported = []
        read_report(made_up(ranks=3, steps=20), progress=lambda *row: reported.append(row))
        assert [row[:2] for row in reported] == [(0, 3), (1, 3), (2, 3)]
        assert reported[-1][2] == read_report(made_up(ranks=3, steps=20)).events

    def test_metrics(self, tmp_path):
        """Of values that were recorded by name the last, the least and the greatest are exact, in a short job too."""
        source = Source(id="0" * 16, run_id="run")
        values = [0.5, 0.25, 0.75, 0.625]
        events = [MetricsLogged(at_ns=S * n, step=n, values={"accuracy": value}) for n, value in enumerate(values, 1)]
        write_log(tmp_path, source, events)
        (row,) = read_report(tmp_path).counters
        assert (row.last, row.minimum, row.maximum, row.count) == (0.625, 0.25, 0.75, 4)
        assert [(one.median, one.first_step) for _, one in row.level] == [(0.5, 1), (0.25, 2), (0.75, 3), (0.625, 4)]

    def test_hostile(self, hostile):
        """Names that contain markup are shown as text."""
        assert read_report(hostile).session == HOSTILE


class TestPage:
    def test_alone(self, page):
        """
        The page refers to no other resource: no address, no script and no file is in it, and its policy forbids all of
        them.
        """
        assert "http:" not in page
        assert "https:" not in page
        assert not re.search(r"(?i)<script|<iframe|<object|@import|url\(|src=", page)
        assert re.findall(r'href="([^"]*)"', page) == ["data:,"]
        assert "default-src 'none'" in html.unescape(page)

    def test_charts(self, page):
        """The three charts are there, and the verdict before them."""
        offsets = [page.index(f'id="{name}"') for name in ("verdict", "chart-goodput", "chart-steps", "chart-heatmap")]
        assert offsets == sorted(offsets)

    def test_words(self, page):
        """The main finding is there in words."""
        assert re.search(r'class="headline">1 restart cost [\d.]+ s, [\d.]+ % of the time\.<', page)

    def test_hostile(self, hostile):
        """Any text in a log is shown as text: no markup of it is in the page, and no control character."""
        page = report_page(read_report(hostile))
        assert "<script" not in page
        assert "<img" not in page
        assert "\x1b" not in page
        assert page.count("&lt;script&gt;") > 5

    def test_axes(self, page):
        """Both charts have steps and times of the day beneath them, and durations beside."""
        for chart in re.findall(r'<div class="plot">.*?</svg>.*?</div></div>', page):
            assert [*re.findall(r'class="axis">(\w+)<', chart)] == ["step", "time"]
        assert re.search(r'class="tick[^>]*>100<', page)
        assert re.search(r'class="tick[^>]*>22:1\d:\d\d<', page)

    def test_local_time(self, made_up, local_zone):
        """Times are those of the machine's zone, which is named: 22:13:20 UTC is 03:43:20 in India."""
        path = made_up(ranks=1)
        local_zone("Asia/Kolkata")
        page = report_page(read_report(path))
        assert "2023-11-15 03:43:" in page
        assert "Times are in UTC+05:30." in page

    def test_one_rank(self, made_up):
        """For one rank there is no map: it has no other to be compared with."""
        assert "chart-heatmap" not in report_page(read_report(made_up(ranks=1)))

    def test_own(self, tmp_path, write_events):
        """Events and hyper-parameters of the job's own are there: of 3 events the last, the least and the most."""
        events = [
            UnknownEvent(at_ns=START_NS + place * S, step=place, span_id=0, name="acme.skipped", fields=fields)
            for place, fields in enumerate([{"left": 7, "why": "a"}, {"left": 3, "why": "b"}, {"left": 5, "why": "c"}])
        ]
        events.append(ConfigLogged(at_ns=START_NS + 3 * S, step=-1, span_id=0, values={"model.layers": 12}))
        write_events(tmp_path, Source(id="0001", run_id="run"), events)
        page = report_page(read_report(tmp_path))
        assert re.search(r"acme\.skipped <span[^>]*>3 on 1 rank; the last at [^<]*, step 2<", page)
        cells = [re.findall(r"<td[^>]*>([^<]*)<", row) for row in re.findall(r"<tr>.*?</tr>", page)]
        assert ["left", "5", "3", "7"] in [row[:4] for row in cells]
        assert ["why", "c"] in [row[:2] for row in cells]
        assert ["model.layers", "12"] in cells

    def test_exception_of_no_step(self, tmp_path, write_events):
        """An exception that no step is known of is shown without one, in the text and in the page; -1 is no step."""
        raised = ExceptionRaised(type="KeyError", message="17", span_name="", step=-1, at_ns=START_NS + S, span_id=0)
        write_events(tmp_path, Source(id="0001", run_id="run"), [raised])
        report = read_report(tmp_path)
        lines = ["".join(text for text, _ in line) for line in report_lines(report, 100)]
        assert "  rank 0: KeyError: 17" in lines
        assert "-1" not in report_page(report).partition("<h3>Errors</h3>")[2].partition("</table>")[0]

    def test_unwritten_of_an_earlier_attempt(self, made_up):
        """Lost events of killed ranks are reported, however many attempts came after: steps of 110 ms."""
        report = read_report(made_up(killed_at=(201,), noise=0, stumbles=0))
        assert lost_words(report) == (
            "ranks 0-3 have no end record in attempt 0: up to 10 steps, or the last second, may be in no log"
        )

    def test_unwritten_of_an_earlier_run(self, tmp_path, write_events):
        """A run of the session that was killed after 50 steps is not compared with one that went on to step 5,000."""
        for run_id, start_s, steps, end in (("a", 0, 50, []), ("b", 100, 5_000, [SourceEnded])):
            source = Source(id=f"{run_id}-0000", run_id=run_id, session_tag="both", rank=0)
            began_ns = START_NS + start_s * 10**9
            events = [
                IterationEnded(at_ns=began_ns + step * 10**8, step=step, span_id=step + 1, duration_ns=10**8)
                for step in range(1, steps + 1)
            ]
            events += [kind(at_ns=events[-1].at_ns, step=-1, span_id=0, reason="closed") for kind in end]
            write_events(tmp_path, source, events)
        assert lost_words(read_report(tmp_path)) == (
            "rank 0 has no end record in attempt 0: up to 11 steps, or the last second, may be in no log"
        )

    def test_nothing_lost(self, made_up):
        """Kinds of loss that did not happen are not listed."""
        page = report_page(read_report(made_up(ranks=2)))
        assert "Nothing that is known of." in page
        assert "bytes damaged" not in page

    def test_perhaps_lost(self, made_up):
        """If a killed rank may have had more to write, the tile counts the losses that are known."""
        page = report_page(read_report(made_up(killed_at=(130,), noise=0, stumbles=0)))
        assert "<b>0</b><span>events known lost</span>" in page

    def test_command(self, made_up):
        """A command of the advice stands for itself, to be copied, with the path in it."""
        report = read_report(made_up(ranks=2, killed_at=(130,)))
        assert f"<code>trackside runs {report.paths[0]}</code>" in report_page(report)

    def test_no_steps(self, tmp_path, write_events):
        """A job that made no step has a page too."""
        events = [
            SpanEnded(at_ns=START_NS, step=-1, span_id=1, parent_span_id=0, name="model_initialization", duration_ns=S)
        ]
        write_events(tmp_path, Source(id="0001", run_id="run"), events)
        page = report_page(read_report(tmp_path))
        assert "No training step ended." in page

    def test_many_ranks(self):
        """Of many ranks neighbours are one cell, by their worst: the map stays small, and the slow one is named."""
        ranks = list(range(4_096))
        scores = [[0.31 if (rank, name) == (2_711, 5) else 0.99 for rank in ranks] for name in range(8)]
        nodes = [f"node{rank // 8}" for rank in ranks]
        chart = heat(Heatmap(basis="", ranks=ranks, nodes=nodes, names=[f"part {n}" for n in range(8)], scores=scores))
        assert len(chart) < 400_000
        assert "ranks 2704 to 2719: worst is rank 2711 on node338: 0.310" in chart
        assert chart.index("part 5") < chart.index("part 0")


class TestText:
    @pytest.fixture
    def printed(self):
        """Give a function that returns a report as it is printed where there is no terminal."""
        rich = pytest.importorskip("trackside.report.rich", reason="rich is not installed in this environment")
        import io

        def run(report):
            out = io.StringIO()
            rich.print_report(report, rich.make_console(file=out))
            return out.getvalue()

        return run

    def test_sections(self, printed, made_up):
        """It has the verdict, the attempts, the steps, the ranks, the spans, the counters, and what is missing."""
        text = printed(read_report(made_up(killed_at=(130,))))
        titles = (
            "restart", "Where the time went", "Step time", "What a step is made of", "Ranks compared", "Spans",
            "Metrics", "What is missing",
        )  # fmt: skip
        places = [text.index(title) for title in titles]
        assert places == sorted(places)

    @pytest.mark.parametrize(("reason", "outcome"), [("closed", "ended"), ("ValueError", "failed")])
    def test_outcome(self, printed, tmp_path, write_events, reason, outcome):
        """A job that an exception ended has failed; another one has ended."""
        events = [IterationEnded(at_ns=S, duration_ns=90_000, step=0), SourceEnded(at_ns=2 * S, reason=reason)]
        write_events(tmp_path, Source(id="s", run_id="run"), events)
        report = read_report(tmp_path)
        assert report.outcome == outcome
        assert f"1 attempt, {outcome}\n" in printed(report)

    def test_least_loss(self, printed, tmp_path, write_events):
        """Of losses 2, 1, 2/3 … 0.02 the least is 0.02, however few stretches are drawn."""
        steps = [
            IterationEnded(at_ns=(step + 1) * 100_000, duration_ns=90_000, step=step, loss=2 / (step + 1))
            for step in range(100)
        ]
        write_events(tmp_path, Source(run_id="run"), steps)
        text = " ".join(printed(read_report(tmp_path)).split())
        # Its stretches are of 1.05 ms, so of ten or eleven steps: the first ends with step 9 or 10.
        first = r"loss (\S+) \(median of steps 0 to (9|10)\), (\S+) \(median of steps \d+ to 99\), least 0.02 "
        found = re.search(first, text)
        assert found is not None
        assert found[1] == {"9": "0.3667", "10": "0.3333"}[found[2]]

    def test_single_losses(self, printed, tmp_path, write_events):
        """Losses that are far apart are named with their steps."""
        steps = [
            IterationEnded(at_ns=(step + 1) * 10**9, duration_ns=90_000, step=step, loss=2.0 - step)
            for step in range(3)
        ]
        write_events(tmp_path, Source(run_id="run"), steps)
        assert "loss 2 in step 0, 0 in step 2, least 0 " in " ".join(printed(read_report(tmp_path)).split())

    def test_before_start(self, printed, made_up):
        """The report says for how long a process had run before telemetry began, of each attempt; no figure has it."""
        report = read_report(made_up(killed_at=(130,), before_start_s=12.5))
        text = " ".join(printed(report).split())
        assert "The process of rank 0 had run for 12.5 s when start() was called" in text
        assert "Attempt 1: 12.5 s of the restart downtime were its process and imports before start()" in text
        assert report.goodput == read_report(made_up(killed_at=(130,))).goodput

    def test_little_before_start(self, printed, made_up):
        """Less than half a second before telemetry began is not worth a line."""
        assert "start() was called" not in printed(read_report(made_up(before_start_s=0.4)))

    def test_many_settings(self, printed, made_up):
        """Of 45 hyper-parameters a terminal shows 40, and says how to see the others."""
        config = {f"option_{number:02}": number for number in range(45)}
        text = " ".join(printed(attrs.evolve(read_report(made_up()), config=config)).split())
        assert "option_39=39 and 5 more: trackside report --html" in text
        assert "option_40" not in text

    def test_columns_without_values(self, printed, made_up):
        """A column of which no row has a value is left out, here the extremes of a stat that records its mean alone."""
        row = CounterRow(
            name="x", unit="s", count=3, sum=6.0, mean=2.0, last=2.0, minimum=None, maximum=None, p50=None, p99=None
        )
        text = printed(attrs.evolve(read_report(made_up()), counters=(row,)))
        lines = text.partition("\nMetrics\n")[2].splitlines()[:2]
        assert [line.split() for line in lines] == [["metric", "last"], ["x", "2", "s"]]

    def test_plain(self, printed, made_up):
        """Without a terminal it has no control characters, and no line is longer than 100 characters."""
        text = printed(read_report(made_up()))
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 100

    def test_bad_end(self, printed, made_up):
        """An attempt whose four ranks were killed is one bad end on the time axis, before the restart."""
        text = printed(read_report(made_up(killed_at=(201,), noise=0, stumbles=0)))
        assert "1 bad end, 1 restart" in " ".join(text.split())

    def test_units(self, made_up):
        """In a line of any width, a value and its unit stay together."""
        report = read_report(made_up(killed_at=(130,)))
        for width in range(40, 101):
            text = "\n".join("".join(piece for piece, _ in line) for line in report_lines(report, width))
            assert not re.search(r"\d\n *(%|ms\b|s\b|min\b)", text)

    def test_hostile(self, printed, hostile):
        """Text in a log does not steer the terminal, nor is it read as rich's markup."""
        text = printed(read_report(hostile))
        assert "\x1b" not in text
        assert r"\x1b[2J" in text


def test_lateness_without_windows():
    """The lateness of a rank is that of the steps whose windows are there: steps between them do not count as zero."""
    slow = Straggler(
        rank=1,
        node="node-1",
        kind="relative",
        what="section forward",
        score=0.5,
        lost_s_per_step=0.01,
        since_window=0,
        since_step=0,
    )
    episodes = Episodes()
    for window in (0, 9):
        first = window * 10
        episodes.add(
            SimpleNamespace(
                attempt=0,
                window=window,
                start_ns=0,
                first_step=first,
                last_step=first + 9,
                is_closed=True,
                stragglers=[slow],
            )
        )
    (late,) = late_by_windows(episodes, set())
    assert late.lateness_ns == pytest.approx(10e6)
    assert late.lost_s == pytest.approx(0.2)
