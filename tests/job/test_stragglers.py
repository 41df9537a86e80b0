"""The watch for stragglers while a job runs."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

import trackside
from trackside.bus import Bus
from trackside.events import ConfigError, Source, StragglerReport, set_process_source
from trackside.handlers import Capture, EventLog, replay
from trackside.handlers.models.scores import Thresholds
from trackside.instruments import configure_sections, section, training_iteration
from trackside.instruments import section_windows as sections_module
from trackside.job import JobConfig, StragglerWatch, start
from trackside.job import _stragglers as module
from trackside.testing import recorded
from windows import section_window

DEADLINE_S = 30.0

# Every function that waits for other ranks; making groups too.
FORBIDDEN = """
    all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single barrier broadcast
    broadcast_object_list gather gather_object isend irecv monitored_barrier new_group recv reduce reduce_scatter
    reduce_scatter_tensor scatter scatter_object_list send
""".split()


def make_window(number, ms, **fields):
    """Return a rank's window of two sections: data, and one that takes *ms*."""
    return section_window({"data": 2e6, "forward": ms * 1e6}, window=number, steps=20, **fields)


def make_config(**given):
    return JobConfig(application_name="test", **given)


def feed(watch, number, *durations_ms, attempt=0):
    """Give *watch* the windows of as many ranks, in steps of 50 ms."""
    for rank, ms in enumerate(durations_ms):
        source = Source(
            id=f"{attempt}-{rank}", rank=rank, world_size=len(durations_ms), attempt=attempt, host=f"node{rank}"
        )
        watch(recorded(make_window(number, ms), source=source))


@pytest.fixture
def given():
    """Make a watch, with these arguments."""
    return lambda **settings: StragglerWatch(windows_from="calls", **settings)


class TestReports:
    def test_latest(self, given):
        """A report is about the latest window that all ranks are in."""
        watch = given()
        assert watch.generate_report() is None
        feed(watch, 0, 10, 10, 10)
        feed(watch, 1, 10, 20, 10)
        report = watch.generate_report()
        assert report.window == 1
        assert [(one.rank, one.what, one.score) for one in report.stragglers if one.kind == "relative"] == [
            (1, "section forward", 0.5)
        ]

    def test_due_by_steps(self, given):
        """With an interval in steps, every so many calls give a report."""
        watch = given(report_every_steps=3)
        feed(watch, 0, 10, 10, 10)
        assert [watch.report_if_due() is not None for _ in range(7)] == [False, False, True, False, False, True, False]

    def test_due_by_seconds(self, given, monkeypatch):
        """With an interval in seconds, a report is due when so many have passed since the last."""
        clock = iter([100.0, 130.0, 160.0, 170.0, 225.0])
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))  # other threads read theirs
        watch = given(report_interval_s=60.0)
        feed(watch, 0, 10, 10, 10)
        assert [watch.report_if_due() is not None for _ in range(4)] == [False, True, False, True]

    def test_interval_while_running(self, given):
        """The interval may be changed at any time."""
        watch = given(report_every_steps=100)
        feed(watch, 0, 10, 10, 10)
        assert watch.report_if_due() is None
        watch.configure(report_every_steps=2)
        assert watch.report_if_due() is not None

    def test_thresholds_while_running(self, given):
        """The thresholds decide which ranks are stragglers, and may be changed at any time."""
        watch = given()
        feed(watch, 0, 30, 36, 30)
        assert watch.generate_report().stragglers == []
        watch.configure(thresholds=Thresholds(section_relative=0.9))
        assert watch.thresholds.section_relative == 0.9
        assert [one.rank for one in watch.generate_report().stragglers] == [1]


class TestActions:
    def test_called(self, given):
        """The action is called with each report that names a rank, and with no other."""
        recorded = []
        watch = given(on_straggler=recorded.append)
        feed(watch, 0, 10, 10, 10)
        feed(watch, 1, 10, 20, 10)
        feed(watch, 2, 10, 10, 10)
        assert [(report.window, report.stragglers[0].rank) for report in recorded] == [(1, 1)]

    def test_any_action(self, given):
        """An action may call the watch, or change it."""
        seen = []
        watch = given(
            on_straggler=lambda report: (
                seen.append(watch.generate_report().window == report.window),
                watch.configure(thresholds=Thresholds(section_relative=0.1, section_individual=0.1)),
            )
        )
        feed(watch, 0, 10, 20, 10)
        feed(watch, 1, 10, 20, 10)
        assert seen == [True]

    def test_action_fails(self, given, caplog):
        """An exception raised by an action is logged, and the watch goes on."""
        calls = []

        def fail(report):
            calls.append(report.window)
            raise OSError("no network")

        watch = given(on_straggler=fail)
        feed(watch, 0, 10, 20, 10)
        feed(watch, 1, 10, 20, 10)
        assert calls == [0, 1]
        assert "what is to be done about stragglers failed" in caplog.text


class TestStopping:
    def test_off(self, given):
        """Unless the caller asks for it, no rank is stopped."""
        watch = given(agree_every_steps=1)
        feed(watch, 0, 10, 20, 10)
        assert watch.should_stop(0) is False

    def test_at_the_agreed_step(self, given):
        """The request to stop is returned at the next step at which the ranks agree, and from then on."""
        watch = given(stop_if_detected=True, agree_every_steps=10)
        feed(watch, 0, 10, 20, 10)
        assert [watch.should_stop(step) for step in (5, 8, 9, 10)] == [False, False, True, True]

    def test_one_noisy_window(self, given):
        """A window in which some of the times are long is no evidence, and stops nothing."""
        watch = given(stop_if_detected=True, agree_every_steps=1)
        for number, is_found in ((0, False), (1, True)):
            for rank, low_ms in ((0, 10), (1, 9)):
                source = Source(id=str(rank), rank=rank, world_size=2)
                window = section_window({"forward": [low_ms * 1e6, *[(1 + rank) * 1e7] * 20]}, window=number, steps=20)
                watch(recorded(window, source=source))
            assert watch.should_stop(number) is is_found

    def test_recovered_before(self, given):
        """A rank that was slow for a while and is not any more stops nothing."""
        watch = given(stop_if_detected=True, agree_every_steps=10)
        feed(watch, 0, 10, 20, 10)
        feed(watch, 1, 10, 10, 10)
        assert watch.should_stop(9) is False

    def test_what_another_rank_found(self, given, monkeypatch):
        """A rank that has found nothing stops with the others: the maximum of all flags counts."""
        flags = []
        monkeypatch.setattr(module, "is_distributed", lambda: True)
        monkeypatch.setattr(module, "RankGroup", lambda timeout_s: FakeGroup(flags, says=1))
        watch = given(stop_if_detected=True, agree_every_steps=1)
        assert watch.should_stop(0) is True
        assert watch.should_stop(1) is True
        assert flags == [0]  # once all ranks agree, no further call is made

    def test_no_answer(self, given, monkeypatch, caplog):
        """If the others do not answer in time nothing is stopped, and they are not asked again."""
        flags = []
        monkeypatch.setattr(module, "is_distributed", lambda: True)
        monkeypatch.setattr(module, "RankGroup", lambda timeout_s: FakeGroup(flags, says=RuntimeError("timed out")))
        watch = given(stop_if_detected=True, agree_every_steps=1)
        feed(watch, 0, 10, 20, 10)
        assert [watch.should_stop(step) for step in range(3)] == [False, False, False]
        assert flags == [1]
        assert "the ranks cannot agree" in caplog.text


class FakeGroup:
    """A group of other ranks, of which one answers *says*."""

    rank, size = 0, 1

    def __init__(self, flags, *, says):
        self.flags = flags
        self.says = says

    def largest(self, flag):
        """Agree."""
        self.flags.append(flag)
        if isinstance(self.says, Exception):
            raise self.says
        return max(flag, self.says)

    def all_gather(self, data):
        """Be the one rank that answers, or none."""
        if isinstance(self.says, Exception):
            raise self.says
        return [data]


class TestGathering:
    @pytest.fixture
    def group(self, monkeypatch):
        """Be in a group whose answer a test sets."""
        found = FakeGroup([], says=0)
        monkeypatch.setattr(module, "is_distributed", lambda: True)
        monkeypatch.setattr(module, "RankGroup", lambda timeout_s: found)
        set_process_source(Source(rank=0, world_size=1, host="node0"))
        return found

    def test_own_windows(self, group):
        """Windows measured since the last report are exchanged, and not scored before that."""
        watch = StragglerWatch(windows_from="gather", report_every_steps=1)
        feed(watch, 0, 10)
        with watch._lock:
            assert watch._aggregator.latest() is None
        assert watch.generate_report().window == 0

    def test_nothing_new(self, group):
        """A report without a new window equals the last one."""
        watch = StragglerWatch(windows_from="gather", report_every_steps=1)
        feed(watch, 0, 10)
        watch.generate_report()
        assert watch.generate_report().revision == 1

    def test_no_answer(self, group, caplog):
        """If the others do not come in time this rank goes on alone, with its own windows."""
        group.says = RuntimeError("timed out")
        watch = StragglerWatch(windows_from="gather", report_every_steps=1)
        feed(watch, 0, 10)
        assert watch.generate_report().window == 0
        feed(watch, 1, 10)
        assert watch.generate_report().window == 1
        assert caplog.text.count("cannot be gathered") == 1


class TestInJob:
    def test_reads_the_logs_of_all(self, tmp_path):
        """Rank 0 scores the windows that the others write below the job's directory, and publishes the report."""
        recorded = threading.Event()
        watch = StragglerWatch(on_straggler=lambda report: recorded.set())
        other = Bus(source=Source(rank=1, world_size=2, run_id="r", host="node1"))
        with Bus() as bus, other:
            set_process_source(None)
            job = self._start(tmp_path, bus, watch)
            with other.subscribe(EventLog(tmp_path)):
                for number in range(2):
                    bus.log(make_window(number, 10))
                    other.log(make_window(number, 30))
                other.flush()
                bus.flush()
                assert recorded.wait(DEADLINE_S)
            report = watch.generate_report()
            job.close(timeout_s=DEADLINE_S)
        assert [(one.rank, one.node, one.what) for one in report.stragglers] == [(1, "node1", "section forward")]
        published = [event for event in replay(tmp_path) if isinstance(event, StragglerReport)]
        assert {event.source.rank for event in published} == {0}
        assert published[-1].stragglers[0][:3] == [1, "node1", "relative section forward"]

    def _start(self, folder, bus, watch, **given):
        config = make_config(rank=0, world_size=2, run_id="r", **given)
        return start(folder, job=config, handlers=[watch], report=False, bus=bus)

    def test_last_windows(self, tmp_path, monkeypatch):
        """Windows that are written when the job closes are still read and reported."""
        monkeypatch.setattr(module, "_POLL_S", 60.0)
        recorded = []
        watch = StragglerWatch(on_straggler=recorded.append)
        with Bus() as bus:
            job = self._start(tmp_path, bus, watch)
            with Bus(source=Source(rank=1, world_size=2, run_id="r")) as other, other.subscribe(EventLog(tmp_path)):
                other.log(make_window(0, 30))
                other.flush()
            bus.log(make_window(0, 10))
            job.close(timeout_s=DEADLINE_S)
        assert [report.window for report in recorded] == [0]

    def test_earlier_attempts(self, tmp_path):
        """An earlier attempt in the logs counts towards a rank's best speed, and is not reported again."""
        for rank, ms in ((0, 5), (1, 15)):
            source = Source(rank=rank, world_size=2, run_id="r", attempt=0)
            with Bus(source=source) as bus, bus.subscribe(EventLog(tmp_path)):
                bus.log(make_window(0, ms))
                bus.flush()
        recorded = []
        watch = StragglerWatch(on_straggler=recorded.append)
        with Bus() as bus:
            job = self._start(tmp_path, bus, watch, attempt=1)
            other = Bus(source=Source(rank=1, world_size=2, run_id="r", attempt=1))
            with other, other.subscribe(EventLog(tmp_path)):
                for number in range(2):
                    other.log(make_window(number, 15))
                other.flush()
            for number in range(2):
                bus.log(make_window(number, 15))
            job.close(timeout_s=DEADLINE_S)
        assert [(report.attempt, [(one.rank, one.kind) for one in report.stragglers]) for report in recorded] == [
            (1, [(0, "individual")])
        ]

    def test_other_runs(self, tmp_path):
        """Logs of other runs in the same directory are ignored."""
        watch = StragglerWatch()
        with Bus(source=Source(rank=1, world_size=2, run_id="another")) as other, other.subscribe(EventLog(tmp_path)):
            other.log(make_window(0, 30))
            other.flush()
        with Bus() as bus:
            self._start(tmp_path, bus, watch).close(timeout_s=DEADLINE_S)
        assert watch._aggregator.result().windows == []

    def test_other_ranks_make_none(self, tmp_path):
        """A rank that is not the first reads nothing and makes no reports."""
        watch = StragglerWatch()
        with Bus() as bus:
            job = start(
                tmp_path,
                job=make_config(rank=1, world_size=2, run_id="r"),
                handlers=[watch],
                report=False,
                bus=bus,
            )
            bus.log(make_window(0, 10))
            job.close(timeout_s=DEADLINE_S)
        assert watch.generate_report() is None

    def test_one_rank(self, tmp_path):
        """A job of one rank is scored against its own past, without any log being read."""
        recorded = []
        watch = StragglerWatch(on_straggler=recorded.append)
        with Bus() as bus:
            capture = Capture()
            bus.subscribe(capture)
            job = start(tmp_path, job=make_config(world_size=1, rank=0), handlers=[watch], report=False, bus=bus)
            for number, ms in enumerate((10, 10, 30, 30)):
                bus.log(make_window(number, ms))
            job.close(timeout_s=DEADLINE_S)
        assert [(report.window, report.stragglers[0].kind) for report in recorded] == [(3, "individual")]


class TestSettings:
    @pytest.mark.parametrize(
        ("settings", "field"),
        [
            ({"windows_from": "nowhere"}, "windows_from"),
            ({"windows_from": "gather"}, "report_every_steps"),
            ({"report_interval_s": -1.0}, "report_interval_s"),
            ({"report_every_steps": 0}, "report_every_steps"),
            ({"agree_every_steps": 0}, "agree_every_steps"),
        ],
    )
    def test_refused(self, settings, field):
        """An invalid setting is refused, by name."""
        with pytest.raises(ConfigError) as caught:
            StragglerWatch(**settings)
        assert caught.value.field == field


@pytest.mark.torch
class TestNoCollective:
    def test_default_path(self, tmp_path, monkeypatch):
        """Sections, windows, reports and actions work without one call into torch's distributed functions."""
        import torch.distributed as dist

        def forbid(name):
            def refuse(*_arguments, **_more):
                raise AssertionError(f"torch.distributed.{name} was called")

            return refuse

        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        try:
            with monkeypatch.context() as patch:
                for name in FORBIDDEN:
                    patch.setattr(dist, name, forbid(name))
                recorded = self._train(tmp_path / "log")
        finally:
            dist.destroy_process_group()
        assert [(one.rank, one.what) for one in recorded[-1].stragglers if one.kind == "relative"] == [
            (1, "section data")
        ]

    @staticmethod
    def _train(folder):
        recorded = []
        watch = StragglerWatch(on_straggler=recorded.append, report_every_steps=2)
        job = start(
            folder, job=make_config(rank=0, world_size=2, run_id="r"), handlers=[watch], system=False, report=False
        )
        other = Bus(source=Source(rank=1, world_size=2, run_id="r"))
        configure_sections(window_steps=2)
        try:
            with other, other.subscribe(EventLog(folder)):
                for step in range(4):
                    with training_iteration(step), section("data"):
                        pass
                    watch.report_if_due()
                    assert not watch.should_stop(step)
                for number in range(2):
                    slow = section_window({"forward": 1e9, "data": 1e9}, window=number, steps=2, count=20)
                    other.log(slow)
                other.flush()
        finally:
            job.close(timeout_s=DEADLINE_S)
            configure_sections(window_steps=100)
            sections_module._sections.close()
        return recorded


class TestPage:
    def test_as_it_stands(self, tmp_path, monkeypatch):
        """The loop on the page about stragglers runs as it stands there."""
        page = (Path(__file__).resolve().parents[2] / "docs" / "stragglers.md").read_text(encoding="utf-8")
        (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "StragglerWatch(" in block]
        trained = []
        monkeypatch.chdir(tmp_path)
        names = {"trackside": trackside, "batches": "abc", "train": trained.append, "tell_the_operators": print}
        exec(code, names)  # the example of the page
        assert trained == ["a", "b", "c"]
        assert isinstance(names["watch"], StragglerWatch)
