"""
The requests of the reviewers of PyTorch's RFC-0018, one by one, met through the public API.

The numbers are those of the table in ``docs/why.md``, where the two that are declined have their reasons.
"""

from __future__ import annotations

import json
import re
import textwrap
import threading
from pathlib import Path

import pytest

import trackside
from children import printed_by
from trackside import ITERATION, LIFECYCLE, ConfigError, EventLog, IterationEnded, event, replay
from trackside.events import CounterWindow, DuplicateEventError, Event, JobConfigured, TrainingConfigured, clock

ROOT = Path(__file__).resolve().parents[1]
DECLINED = {5, 7}
SECOND = 10**9
DEADLINE_S = 30.0


@event("test.rfc0018.checkpointed", priority=LIFECYCLE)
class Checkpointed(Event):
    """A rare event: a checkpoint was written."""

    path: str = ""


@event("test.rfc0018.evaluated", priority=ITERATION)
class Evaluated(Event):
    """The model was evaluated."""

    loss: float
    accuracy: float
    dataset: str = ""


@event("test.rfc0018.samples", priority=ITERATION)
class Samples(Event):
    """The samples of a counter's window."""

    name: str
    values: list[float]


@pytest.fixture
def windows(bus):
    """Give the list of counter windows that the bus publishes."""
    got = []
    bus.subscribe(got.append, to=CounterWindow)
    return got


def add_all(counter, values):
    """Add each of *values* to *counter*, and return it."""
    for value in values:
        counter.record(value)
    return counter


def recipe(title):
    """Return the code under the heading *title* of the recipes."""
    section = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8").partition(f"## {title}\n")[2]
    return re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]


@pytest.fixture(scope="module")
def watched():
    """Run the recipe for CPU and memory beside a program that only computes, and return the windows by counter."""
    main = """
    import json, threading
    from trackside.events import CounterWindow

    windows, enough = [], threading.Event()

    def see(window):
        windows.append(window)
        if sum(window.name == "process.cpu" for window in windows) == 5:
            enough.set()

    trackside.subscribe(see, to=CounterWindow)
    trackside.collect(interval_s=0.05)
    while not enough.is_set():
        sum(range(1000))
    memory = int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
    print(json.dumps([[w.name, w.unit, w.count, w.values.get("value")] for w in windows] + [["statm", "", 1, memory]]))
    """
    found = {}
    for name, unit, count, value in json.loads(
        printed_by(recipe("Watch the process from the background") + textwrap.dedent(main))
    ):
        found.setdefault(name, []).append((unit, count, value))
    return found


class TestRequests:
    def test_request_01_how_fine(self, bus):
        """
        request_01, "is per-iteration too fine?": a listener chooses the share it gets, and rare events all the same.
        """
        all_of_it, some, rare = [], [], []
        bus.subscribe(all_of_it.append)
        bus.subscribe(some.append, to=IterationEnded, keep=trackside.every(100))
        bus.subscribe(rare.append, min_priority=LIFECYCLE)
        for step in range(1000):
            bus.log(IterationEnded(duration_ns=1, step=step))
        bus.log(Checkpointed())

        assert (len(all_of_it), len(some), len(rare)) == (1001, 10, 1)

    def test_request_02_windows_of_samples(self, bus, windows):
        """request_02, windows by count: each has exactly as many samples as the next, so their spreads compare."""
        bus.collect(count=4, aggregations=["sum", "stddev"])
        add_all(bus.stat("step.time", unit="s"), [2, 4, 4, 6, 1, 1, 1, 1, 9])
        bus.close()

        assert [window.count for window in windows] == [4, 4, 1]
        assert [window.values for window in windows] == [
            {"sum": 16, "stddev": 2**0.5},
            {"sum": 4, "stddev": 0},
            {"sum": 9, "stddev": 0},
        ]

    def test_request_03_count_and_no_data(self, bus, windows):
        """request_03, a count with each window, and an explicit "no data": count 0, and no figures made up."""
        bus.stat("empty", aggregations=["mean", "min"])
        collector = bus.collect(interval_s=1000)
        add_all(bus.stat("full", aggregations=["mean", "min"]), [3, 5])
        collector.close()
        reported = {window.name: (window.count, window.values) for window in windows}

        assert reported == {"empty": (0, {}), "full": (2, {"mean": 4, "min": 3})}

    def test_request_04_in_the_background(self, watched):
        """request_04, CPU time in the background, and an example: the recipe, with no call in the program's loop."""
        shares = [value for _, _, value in watched["process.cpu"]]

        assert len(shares) >= 5
        assert all(share >= 0 for share in shares)
        assert max(shares) > 0.05  # the program does nothing but compute

    def test_request_06_who_sets_the_time(self, bus, fake_clock):
        """request_06, the timestamp is optional: the event has the time at which it was made, unless it is given."""
        got = []
        bus.subscribe(got.append)
        made_ns = fake_clock.now_ns
        made, given = Checkpointed(), Checkpointed(at_ns=123)
        fake_clock.advance(5)
        bus.log(made)
        bus.log(given)

        assert [seen.at_ns for seen in got] == [made_ns, 123]

    def test_request_08_raw_values(self, bus, tmp_path):
        """request_08, raw values to a sink: any stretch of time can be aggregated later, from what was recorded."""
        bus.subscribe(EventLog(tmp_path))
        raw = lambda name, values: bus.log(Samples(name=name, values=list(values)))  # noqa: E731
        with bus.collect(count=10, raw=raw):
            add_all(bus.stat("loss"), range(1000))
        bus.close()
        values = [value for samples in replay(tmp_path, to=Samples) for value in samples.values]

        assert values == list(range(1000))
        assert sum(values[250:260]) == 2545

    def test_request_09_namespaces(self):
        """request_09, namespaces: a wire name begins with its owner, and two classes cannot have the same one."""
        with pytest.raises(ConfigError, match="event name"):
            event("checkpointed")(type("Unowned", (Event,), {}))
        with pytest.raises(DuplicateEventError, match="choose another name"):
            event("test.rfc0018.checkpointed")(type("Impostor", (Event,), {"__module__": "elsewhere"}))

    def test_request_10_start_and_end_with_parameters(self, tmp_path):
        """request_10, events for start and end with parameters, and a standard set of figures per iteration."""
        program = """
            import sys, trackside
            from trackside.events import JobConfigured, TrainingConfigured

            with trackside.start(sys.argv[1], report=False):
                trackside.log(JobConfigured(
                    world_size=1, rank=0, node_name="n", session_tag="s", application_name="charlm"
                ))
                trackside.log(TrainingConfigured(perf_tag=["charlm"], global_batch_size=8, train_iterations_target=1))
                trackside.log(trackside.IterationEnded(duration_ns=5, samples=8, tokens=64, flops=1e9, loss=2.5))
        """
        printed_by(program, tmp_path)
        recorded = list(replay(tmp_path))
        job, training, iteration = (
            next(found for found in recorded if type(found) is kind)
            for kind in (JobConfigured, TrainingConfigured, IterationEnded)
        )

        assert [recorded[0].wire_name, recorded[-1].wire_name] == ["trackside.source.started", "trackside.source.ended"]
        assert recorded[-1].reason == "closed"
        assert (job.application_name, training.global_batch_size, training.train_iterations_target) == ("charlm", 8, 1)
        assert (iteration.samples, iteration.tokens, iteration.flops, iteration.loss) == (8, 64, 1e9, 2.5)

    def test_request_11_model_metrics(self, bus, tmp_path):
        """request_11, loss and accuracy: fields of events, the iteration's or one's own, that come back unchanged."""
        bus.subscribe(EventLog(tmp_path))
        bus.log(IterationEnded(duration_ns=1, loss=0.1 + 0.2, step=7))
        bus.log(Evaluated(loss=0.5, accuracy=0.75, dataset="held out", step=7))
        bus.close()
        iteration, evaluated = list(replay(tmp_path, to=(IterationEnded, Evaluated)))

        assert (iteration.loss, iteration.step) == (0.1 + 0.2, 7)
        assert (evaluated.loss, evaluated.accuracy, evaluated.dataset) == (0.5, 0.75, "held out")

    def test_request_12_utilisation(self, watched):
        """request_12, utilisation: the CPU's and memory's by the recipe, with their units. The GPU's is not read."""
        units = {name: {unit for unit, _, _ in reported} for name, reported in watched.items()}
        (_, _, resident), peaks = watched["statm"][0], [value for _, _, value in watched["process.memory.peak"]]

        assert (units["process.cpu"], units["process.memory.peak"]) == ({"CPUs"}, {"bytes"})
        assert 0.5 * resident < peaks[-1] < 100 * resident

    def test_request_13_whose_loop(self, bus):
        """request_13, the background loop is the library's: a window closes on its thread, with no more adds."""
        closed, threads = threading.Event(), []

        def see(window):
            if window.count:
                threads.append(threading.current_thread())
                closed.set()

        bus.subscribe(see, to=CounterWindow)
        with bus.collect(interval_s=0.01):
            bus.stat("x").record(1)
            was_closed = closed.wait(DEADLINE_S)

        assert was_closed
        assert threads[0] is not threading.main_thread()

    @pytest.mark.parametrize("jump_s", [-3600, 3600])
    def test_request_14_monotonic(self, bus, fake_clock, jump_s):
        """request_14, wall clocks drift and are set: time between events is monotonic, to the nanosecond."""
        got = []
        bus.subscribe(got.append)
        wall_ns = [1_700_000_000 * SECOND]
        with clock.installed(fake_clock, lambda: wall_ns[0]):
            bus.log(Checkpointed())
            fake_clock.advance(0.000000123)
            wall_ns[0] += jump_s * SECOND
            bus.log(Checkpointed())

        assert got[1].at_ns - got[0].at_ns == 123

    def test_request_15_ids(self, tmp_path):
        """request_15, an id for forensics across ranks: source and number name one event, and only one."""
        program = """
            import sys, trackside
            from trackside import Event, event

            @event("test.rfc0018.checkpointed", priority=trackside.LIFECYCLE)
            class Checkpointed(Event):
                path: str = ""

            with trackside.start(sys.argv[1], report=False):
                for _ in range(10):
                    trackside.log(Checkpointed())
        """
        for _ in range(2):
            printed_by(program, tmp_path)
        ids = [(recorded.source.id, recorded.seq) for recorded in replay(tmp_path)]

        assert len(set(ids)) == len(ids)
        assert len({source for source, _ in ids}) == 2
        assert len(list(replay(tmp_path, to=Checkpointed))) == 20

    def test_request_16_spans(self):
        """request_16, spans: starts and ends with their parents, and every event inside names its span."""
        program = """
            import json, trackside
            from trackside import Event, event
            from trackside.events import SpanEnded
            from trackside.instruments import span

            @event("test.rfc0018.checkpointed")
            class Checkpointed(Event):
                path: str = ""

            from trackside.testing import Capture
            captured = Capture()
            trackside.subscribe(captured)
            with span("outer") as outer:
                with span("inner") as inner:
                    trackside.log(Checkpointed())
            ended = {found.name: found for found in captured.of(SpanEnded)}
            print(json.dumps([
                ended["outer"].parent_span_id,
                ended["inner"].parent_span_id == outer.id,
                captured.of(Checkpointed)[0].span_id == inner.id,
                ended["outer"].duration_ns >= ended["inner"].duration_ns > 0,
            ]))
        """
        assert json.loads(printed_by(program)) == [0, True, True, True]

    def test_request_17_never_unconditionally(self, bus):
        """request_17, nothing is emitted unconditionally: a cheap test first, then filters and sampling by the user."""
        before = bus.wants(Evaluated)
        got = []
        good = trackside.where(lambda evaluated: evaluated.accuracy > 0.5)
        subscription = bus.subscribe(got.append, to=Evaluated, keep=trackside.all_of(good, trackside.every(2)))
        during = bus.wants(Evaluated), bus.wants(Checkpointed)
        for accuracy in (0.1, 0.6, 0.7, 0.2, 0.8):
            bus.log(Evaluated(loss=0.0, accuracy=accuracy))
        stats = subscription.stats()
        subscription.close()

        assert (before, during, bus.wants(Evaluated)) == (False, (True, False), False)
        assert [evaluated.accuracy for evaluated in got] == [0.6, 0.8]
        assert (stats.logged, stats.handled, stats.filtered, stats.sampled) == (5, 2, 2, 1)

    def test_request_18_counters_only_accumulate(self, bus, windows):
        """request_18, counters only accumulate and collectors sample: adding publishes nothing, reading sees all."""
        counter = add_all(bus.stat("tokens"), range(10_000))

        assert windows == []
        assert (counter.count, counter.sum) == (10_000, 49_995_000)

    def test_request_19_passive_counters(self, bus):
        """request_19, passive counters: a callback is called once in each cycle of the collector, and not otherwise."""
        asked, enough = [], threading.Event()

        def allocated():
            asked.append(threading.current_thread())
            return 1000 + len(asked)

        def see(window):
            values.append(window.values.get("value"))
            if len(values) == 3:
                enough.set()

        values = []
        bus.subscribe(see, to=CounterWindow)
        bus.gauge("cuda.memory.allocated", callback=allocated, unit="bytes")
        not_yet = list(asked)
        with bus.collect(interval_s=0.01):
            assert enough.wait(DEADLINE_S)

        assert not_yet == []
        assert values[:3] == [1001, 1002, 1003]
        assert threading.main_thread() not in asked

    def test_request_20_timing_a_block(self, bus, fake_clock):
        """request_20, ``with`` to time a block: the counter gets its duration, in its own unit."""
        counter = bus.stat("data.wait", unit="ms")
        with counter.time():
            fake_clock.advance(0.25)

        assert (counter.count, counter.sum) == (1, 250)

    def test_request_21_help_and_unit(self, bus, windows):
        """request_21, called counters, with help and unit; the unit travels with every window."""
        counter = bus.stat("data.wait", unit="ms", help="Time spent waiting for the next batch.")
        bus.collect(interval_s=1000).close()

        assert (counter.unit, counter.help) == ("ms", "Time spent waiting for the next batch.")
        assert [window.unit for window in windows] == ["ms"]

    def test_request_22_query(self, bus):
        """request_22, counters can be listed and filtered; asking for one by name is what registers it."""
        for name in ("train.loss", "train.tokens", "eval.loss"):
            bus.stat(name)
        add_all(bus.stat("train.tokens"), [5])

        assert [counter.name for counter in bus.counters("train.*")] == ["train.loss", "train.tokens"]
        assert [counter.name for counter in bus.counters()] == ["eval.loss", "train.loss", "train.tokens"]
        assert bus.counters("train.tokens")[0].snapshot().sum == 5

    def test_request_23_explicit_zero(self, bus):
        """request_23, an explicit zero: a counter without new amounts has windows like any other, of count 0."""
        seen, enough = [], threading.Event()

        def see(window):
            seen.append((window.count, window.total_count))
            if len(seen) == 3:
                enough.set()

        bus.subscribe(see, to=CounterWindow)
        bus.stat("quiet")
        with bus.collect(interval_s=0.01):
            assert enough.wait(DEADLINE_S)

        assert seen[:3] == [(0, 0)] * 3

    def test_request_24_collection_apart_from_aggregation(self, bus):
        """request_24, collection apart from aggregation: each collector has windows and figures of its own."""
        by_kind = {}
        bus.subscribe(lambda window: by_kind.setdefault(tuple(window.values), []).append(window), to=CounterWindow)
        counter = bus.stat("loss", aggregations=["max"])
        collectors = [bus.collect(count=2), bus.collect(count=3, aggregations=["min", "mean"])]
        add_all(counter, [1, 2, 3, 4, 5, 6])
        for collector in collectors:
            collector.close()
        reported = {kind: [window.values for window in windows if window.count] for kind, windows in by_kind.items()}

        assert reported["max",] == [{"max": 2}, {"max": 4}, {"max": 6}]
        assert reported["mean", "min"] == [{"mean": 2, "min": 1}, {"mean": 5, "min": 4}]

    def test_request_25_percentiles(self, bus, windows, rng):
        """request_25, P95 and P99: within 1 % of the true ones, whatever the outliers."""
        values = [rng.lognormvariate(-3, 0.5) for _ in range(20_000)] + [1e9] * 20
        rng.shuffle(values)
        collector = bus.collect(interval_s=1000, aggregations=["p95", "p99", "mean"])
        add_all(bus.stat("step.time", unit="s"), values)
        collector.close()
        ordered = sorted(values)
        true = {f"p{q}": ordered[q * (len(values) - 1) // 100] for q in (95, 99)}

        assert windows[0].values["p95"] == pytest.approx(true["p95"], rel=0.01)
        assert windows[0].values["p99"] == pytest.approx(true["p99"], rel=0.01)
        assert windows[0].values["mean"] > 1e5  # twenty outliers move the mean so far

    def test_request_26_which_keys_are_metrics(self, bus, windows):
        """request_26, the metric keys: a window's figures are numbers by name, apart from its description."""
        collector = bus.collect(interval_s=1000, aggregations=["min", "max"])
        add_all(bus.stat("step.time", unit="s"), [1, 3])
        collector.close()

        assert (windows[0].name, windows[0].unit, windows[0].values) == ("step.time", "s", {"min": 1, "max": 3})

    def test_request_26_last_batch(self, tmp_path):
        """request_26, the last batch is not lost: amounts after the last window are in the log at exit."""
        program = """
            import sys, trackside

            trackside.start(sys.argv[1], report=False)
            trackside.stat("tokens").record(5)
        """
        printed_by(program, tmp_path)
        windows = list(replay(tmp_path, to=CounterWindow))

        assert [(window.name, window.count, window.total_sum) for window in windows] == [("tokens", 1, 5)]

    def test_request_27_console(self, tmp_path):
        """request_27, a console handler: print is one, and ``trackside tail`` prints recorded events."""
        program = """
            import sys, trackside
            from trackside import Event, event

            @event("test.rfc0018.checkpointed", priority=trackside.LIFECYCLE)
            class Checkpointed(Event):
                path: str = ""

            trackside.subscribe(print, to=Checkpointed)
            with trackside.start(sys.argv[1], report=False):
                trackside.log(Checkpointed(path="last.pt", at_ns=1, step=3))
            from trackside.cli import main
            main(["tail", sys.argv[1], "--type", "test.*"])
        """
        printed, tailed = printed_by(program, tmp_path).splitlines()

        assert printed == "Checkpointed(at_ns=1, span_id=0, step=3, path='last.pt')"
        assert tailed.endswith("step 3     test.rfc0018.checkpointed  path=last.pt")


@pytest.fixture(scope="module")
def rows():
    """Give the rows of the table of requests, by number."""
    lines = (ROOT / "docs" / "why.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return {int(row[0]): row for row in cells if row[0].isdecimal()}


class TestWhyPage:
    def test_every_request(self, rows):
        """Each of the 27 requests has a row."""
        assert sorted(rows) == list(range(1, 28))

    @pytest.mark.parametrize("number", range(1, 28))
    def test_test_or_reason(self, rows, number):
        """A request that is met names a test that exists; one that is declined says so and has none."""
        named = re.findall(r"`(test_request_\d\d\w*)`", rows[number][-1])
        own = [name for name in dir(TestRequests) if name.startswith(f"test_request_{number:02}")]

        assert sorted(named) == sorted(own)
        assert bool(named) == (number not in DECLINED)
        assert rows[number][-1].startswith("declined") == (number in DECLINED)
