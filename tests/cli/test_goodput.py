"""``trackside goodput``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from trackside.bus import Bus
from trackside.cli._goodput import _buckets
from trackside.events import IterationEnded, Source, SourceEnded, UnreadableError
from trackside.handlers import EventLog, replay
from trackside.testing import FakeClock

pytestmark = pytest.mark.once

PAGE = Path(__file__).resolve().parents[2] / "docs" / "goodput.md"
START_S = 1_704_070_800
"""2024-01-01 01:00:00 UTC."""
BUCKETS = {
    "ACCELERATOR_INITIALIZATION",
    "CUSTOM_BADPUT_EVENTS",
    "DATA_LOADING_SYNC",
    "ELASTIC_REINITIALIZATION",
    "ELASTIC_SCALE_UP",
    "ELASTIC_SLICE_DOWN",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "OTHER",
    "PROGRAM_STARTUP",
    "TRAINING_PREP",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "VALIDATION",
    "WASTED_PROGRESS_FROM_DISRUPTION",
}


def payloads(*points, name="job"):
    """Return records of *points*: a key, a time in seconds after the start, and a step or the type of an event."""
    found = []
    for key, at, *more in points:
        payload = {"job_name": name, key: float(START_S + at)}
        if more:
            payload["step_count" if key == "step_start_time" else "custom_badput_event_type"] = more[0]
        found.append(payload)
    return found


DISRUPTED = payloads(
    ("job_start_time", 0),
    ("tpu_init_start_time", 0),
    ("tpu_init_end_time", 1),
    ("training_prep_start_time", 1),
    ("training_prep_end_time", 3),
    ("data_loading_start_time", 3),
    ("data_loading_end_time", 5),
    *(("step_start_time", at, step) for step, at in enumerate((5, 13, 16, 19, 22))),
    ("job_start_time", 30),
    *(("step_start_time", at, step) for step, at in enumerate((35, 43, 46), start=2)),
    ("job_end_time", 49),
)
"""Five steps of 3 s, then again from step 2; each attempt's first step takes 5 s more."""


@pytest.fixture
def write(tmp_path):
    """Give a function that writes records, or lines as they are, to a file and returns it."""

    def write(name, lines):
        path = tmp_path / name
        path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return path

    return write


@pytest.fixture
def disrupted(write):
    """Give the records of a job that was restarted."""
    return write("export.jsonl", DISRUPTED)


@pytest.fixture
def write_run(tmp_path):
    """
    Give a function that records a run of two steps of 2 s, the second one 1 s after the first; it returns the path.
    """

    def write(run_id="run-1", *, directory="runs", **printed):
        source = Source(id=f"{run_id}-{printed.get('rank', 0)}", run_id=run_id, **printed)
        with FakeClock(START_S * 10**9).installed() as clock, Bus(source=source) as bus:
            bus.subscribe(EventLog(tmp_path / directory))
            for step, end_s in ((0, 3), (1, 6)):
                clock.now_ns = (START_S + end_s) * 10**9
                bus.log(IterationEnded(span_id=step + 1, duration_ns=2 * 10**9, step=step))
            assert bus.flush(60)
        return tmp_path / directory

    return write


def readable_events(path):
    """Return the events that can be read from the logs in *path*."""
    try:
        return list(replay(path))
    except UnreadableError:
        return []


class TestText:
    def test_whole(self, command, disrupted):
        """The bar, the buckets largest first, and every figure of the account; percentages are 100.0 in all."""
        outcome = command("goodput", disrupted)

        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.lines == [
            "session job: goodput 30.6 %, 15 s of 49 s productive",
            "from 2024-01-01 01:00:00.000Z to 2024-01-01 01:00:49.000Z, 2 attempt(s), 1 disruption(s), last step 4",
            "[##################..........................................]",
            "",
            "  productive                 15 s   30.6 %",
            "  first step                 10 s   20.4 %  PROGRAM_STARTUP",
            "  restart downtime            8 s   16.3 %  INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
            "  recomputed steps            6 s   12.2 %  WASTED_PROGRESS_FROM_DISRUPTION",
            "  before the first step       5 s   10.2 %  BEFORE_FIRST_STEP",
            "  waiting for data            2 s    4.1 %  DATA_LOADING_SYNC",
            "  startup                     2 s    4.1 %  TRAINING_PREP",
            "  accelerator startup         1 s    2.0 %  ACCELERATOR_INITIALIZATION",
            "  total                      49 s  100.0 %",
            "",
            "own time of a step: ideal 3 s, p50 3 s, p90 8 s, p99 8 s, mean deviation 1.67 s",
            "slow steps: 2 of 6, longer than 3 s",
            "degraded: 0 s productive beyond the ideal; effective goodput 30.6 %",
            "",
            "how it was computed",
            "  read: 17 record(s) of ml-goodput-measurement",
            "  the session has ended",
            "  of each attempt the time of the rank that got least out of it counts; validation is not productive",
            "  own time is what no other bucket has; the ideal is the mean of all steps but the slow ones",
            "  a step in such records lasts until the next one begins: they do not say when it ended",
        ]

    def test_custom(self, command, write):
        """A type of custom events is a bucket of its own, spelled as it was recorded."""
        started = ("custom_badput_event_start_time", 2, "evalStep")
        ended = ("custom_badput_event_end_time", 6, "evalStep")
        path = write("a.jsonl", payloads(("job_start_time", 0), started, ended, ("job_end_time", 8)))

        lines = command("goodput", path).lines
        assert [line.split() for line in lines[4:6]] == [
            ["evalStep", "4", "s", "50.0", "%", "CUSTOM_BADPUT_EVENTS"],
            ["unaccounted", "4", "s", "50.0", "%", "OTHER"],
        ]

    def test_problems(self, command, write):
        """Faults in the records are counted and named, and the sound ones are read."""
        path = write("a.jsonl", [*DISRUPTED[:7], {"job_name": "job", "colour": "red"}, *DISRUPTED[7:-1]])
        outcome = command("goodput", path)

        problems = outcome.lines[outcome.lines.index("problems") :]
        assert problems == [
            "problems",
            "  1 × a record with unknown keys",
            "  1 × an attempt without an end: it runs, or fell silent",
        ]
        assert "  the session has not ended well: it runs, died, or its log is torn" in outcome.lines

    def test_ranks(self, command, write_run):
        """Of several ranks it prints their number and the wait between them."""
        for rank in range(2):
            runs = write_run(rank=rank, world_size=2)

        assert "ranks: 2; none has more badput than another" in command("goodput", runs).lines

    def test_control_characters(self, command, write):
        """A text in a record cannot steer the terminal."""
        name = "job\x1b[2J"
        path = write("a.jsonl", payloads(("job_start_time", 0), ("job_end_time", 1), name=name))

        assert command("goodput", path).lines[0].startswith("session job\\x1b[2J: ")

    def test_no_time(self, command, disrupted):
        """Of a stretch outside the session nothing is known: no goodput, and no division by zero."""
        outcome = command("goodput", disrupted, "--from", START_S + 100, "--to", START_S + 200)

        assert (outcome.code, outcome.lines[0]) == (0, "session job: goodput –, 0 s of 0 s productive")


class TestPage:
    def test_sample(self, command, write, monkeypatch):
        """The page on goodput shows the output of the command for the job that it describes."""
        path = write("export.jsonl", [{**payload, "job_name": "llama"} for payload in DISRUPTED])
        monkeypatch.chdir(path.parent)
        (sample,) = re.findall(r"```console\n\$ trackside goodput (.*?)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)

        assert command("goodput", sample[0]).out == sample[1]


def test_rounded_as_in_the_report():
    """Each share is rounded on its own, as in the report: three equal ones are 33.3 % each."""
    account = SimpleNamespace(productive_s=1.0, named_badput_s={"OTHER": 1.0, "VALIDATION": 1.0}, elapsed_s=3.0)
    rows = list(_buckets(account))

    assert [re.search(r"([0-9.]+) %", row)[1] for row in rows] == ["33.3", "33.3", "33.3", "100.0"]


class TestJson:
    def test_keys(self, command, disrupted):
        """The JSON is one object with these keys, and every bucket is there."""
        printed = json.loads(command("goodput", disrupted, "--json").out)

        assert list(printed) == [
            "session",
            "elapsed_s",
            "productive_s",
            "goodput",
            "badput_s",
            "named_badput_s",
            "informational_s",
            "excluded_s",
            "attempts",
            "disruptions",
            "last_step",
            "step_time",
            "ranks",
        ]
        assert set(printed["badput_s"]) == BUCKETS
        assert list(printed["step_time"]) == ["ideal_s", "p50_s", "p90_s", "p99_s", "deviation_s"]

    def test_values(self, command, disrupted):
        """Its values are those of the text, unrounded."""
        printed = json.loads(command("goodput", disrupted, "--json").out)

        assert (printed["session"], printed["elapsed_s"], printed["productive_s"]) == ("job", 49.0, 15.0)
        assert (printed["goodput"], printed["attempts"], printed["disruptions"], printed["last_step"]) == (
            15 / 49,
            2,
            1,
            4,
        )
        assert (printed["badput_s"]["OTHER"], printed["badput_s"]["VALIDATION"]) == (5.0, 0.0)
        assert printed["informational_s"] == {"DATA_LOADING_ASYNC": 0.0}

    def test_problems(self, command, write):
        """Faults in the input are reported on stderr."""
        outcome = command("goodput", write("a.jsonl", DISRUPTED[:-1]), "--json")

        printed = json.loads(outcome.out)
        assert (printed["elapsed_s"], "problems" in printed) == (46.0, False)
        assert outcome.err == "trackside goodput: 1 × an attempt without an end: it runs, or fell silent\n"


class TestStretch:
    def elapsed(self, outcome):
        """Return the length of the stretch, its productive part and its excluded part."""
        assert (outcome.code, outcome.err) == (0, "")
        printed = json.loads(outcome.out)
        return printed["elapsed_s"], printed["productive_s"], printed["excluded_s"]

    @pytest.mark.parametrize("end", ["2024-01-01T01:00:22Z", "2024-01-01 02:00:22+01:00", START_S + 22])
    def test_to(self, command, disrupted, end):
        """Up to 22 s after the start there were three steps that count, and that were not done again: 3 s and 3 s."""
        assert self.elapsed(command("goodput", disrupted, "--json", "--to", end)) == (22.0, 6.0, 0.0)

    def test_from(self, command, disrupted):
        """From 43 s after the start on it is nothing but two steps."""
        assert self.elapsed(command("goodput", disrupted, "--json", "--from", START_S + 43)) == (6.0, 6.0, 0.0)

    def test_last_window(self, command, disrupted):
        """A window is the last one."""
        assert self.elapsed(command("goodput", disrupted, "--json", "--window", 4.5)) == (4.5, 4.5, 0.0)

    def test_window_before(self, command, disrupted):
        """With an end it is the last one before that: here, of the time in which no process was there."""
        given = ("--window", 4, "--to", START_S + 30)
        assert self.elapsed(command("goodput", disrupted, "--json", *given)) == (4.0, 0.0, 0.0)

    def test_window_after(self, command, disrupted):
        """With a start it is the one after that."""
        given = ("--window", 3, "--from", START_S + 43)
        assert self.elapsed(command("goodput", disrupted, "--json", *given)) == (3.0, 3.0, 0.0)

    def test_excluded(self, command, disrupted):
        """Excluded time leaves both sides, once: 8 s of outage and 3 of the last step's."""
        given = ("--exclude", f"{START_S + 22}/{START_S + 30}", "--exclude", f"{START_S + 46}/{START_S + 60}")
        given += ("--exclude", f"{START_S + 48}/{START_S + 50}")
        assert self.elapsed(command("goodput", disrupted, "--json", *given)) == (38.0, 12.0, 11.0)

    def test_ideal(self, command, disrupted):
        """The ideal step time is the one that was given."""
        outcome = command("goodput", disrupted, "--json", "--ideal-step-time", "2.5")

        assert json.loads(outcome.out)["step_time"]["ideal_s"] == 2.5


class TestRefused:
    @pytest.mark.parametrize(
        ("given", "why"),
        [
            (["--from", "2024-01-01T01:00:00"], "it has no time zone; add Z, or an offset such as +01:00"),
            (["--to", "noon"], "give a time as 2026-01-31T12:00:00Z or in seconds since 1970"),
            (["--from", "200", "--to", "100"], "give a time later than --from"),
            (["--window", "0"], "give a number of seconds above zero"),
            (["--window", "nan"], "give a number of seconds above zero"),
            (["--from", "1", "--to", "2", "--window", "3"], "it goes with --from or with --to, not with both"),
            (["--exclude", "100"], "give two times with a slash between them"),
            (["--exclude", "200/100"], "give the earlier time first"),
            (["--ideal-step-time", "fast"], "give a number of seconds above zero"),
            (["--session", "another"], "there is job"),
        ],
    )
    def test_option(self, command, disrupted, given, why):
        """An invalid value is one line that names a valid one."""
        outcome = command("goodput", disrupted, *given)

        assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)
        assert outcome.err.endswith(f"; {why}\n")

    def test_sessions(self, command, write_run):
        """Several sessions are listed if --session chose none."""
        write_run("run-1")
        runs = write_run("run-2", session_tag="tagged")
        outcome = command("goodput", runs)

        assert (outcome.code, outcome.out) == (2, "")
        assert outcome.err == f"trackside goodput: {runs}: holds 2 sessions: run-1, tagged; choose one with --session\n"

    def test_nothing(self, command, write):
        """Records of no job are no session."""
        path = write("a.jsonl", [{"colour": "red"}])
        outcome = command("goodput", path)

        assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)
        assert outcome.err.startswith(f"trackside goodput: {path}: holds no record of ml-goodput-measurement; ")

    def test_missing(self, command, tmp_path):
        """A path that does not exist is one line."""
        outcome = command("goodput", tmp_path / "nowhere")

        assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)


class TestInput:
    def test_log(self, command, write_run):
        """Of a log of two steps of 2 s, from 1 s to 6 s, 4 s of 5 are productive."""
        outcome = command("goodput", write_run(session_tag="tagged"), "--json")

        printed = json.loads(outcome.out)
        assert (outcome.code, outcome.err) == (0, "")
        assert (printed["session"], printed["elapsed_s"], printed["productive_s"]) == ("tagged", 5.0, 4.0)

    def test_session(self, command, write_run):
        """Of several sessions the one that was named is shown."""
        write_run("run-1")
        outcome = command("goodput", write_run("run-2"), "--session", "run-2", "--json")

        assert json.loads(outcome.out)["session"] == "run-2"

    def test_all_events(self, command, readable):
        """Any event shows that the process was alive: the time goes on to the last one, 2 s after the start."""
        printed = json.loads(command("goodput", readable, "--json").out)

        assert (printed["elapsed_s"], printed["badput_s"]["OTHER"]) == (2.0, 2.0)

    def test_unreadable_log(self, command, readable, unreadable):
        """Readable files are used, each unreadable one is a line, and the exit code is 2."""
        outcome = command("goodput", unreadable, readable)

        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
        assert outcome.lines[0].startswith("session run-1: ")

    def test_missing_beside_records(self, command, disrupted, tmp_path):
        """Records are read though a named log is missing."""
        outcome = command("goodput", tmp_path / "nowhere.tslog", disrupted)

        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
        assert outcome.lines[0].startswith("session job: goodput 30.6 %")

    def test_order(self, command, write_run):
        """The order in which logs are given does not matter."""
        first = write_run("run-1", directory="first", session_tag="s")
        second = write_run("run-2", directory="second", session_tag="s", attempt=1, rank=1)
        assert command("goodput", first, second, "--json").out == command("goodput", second, first, "--json").out

    def test_torn_log(self, command, write_run):
        """
        A log that is torn anywhere gives the result for its sound part, and the text says that the end is missing.
        """
        runs = write_run()
        (path,) = runs.rglob("*.tslog")
        whole = path.read_bytes()
        printed = set()
        for length in range(len(whole) - 1, 0, -23):
            path.write_bytes(whole[:length])
            outcome = command("goodput", runs)
            if any(isinstance(event, IterationEnded) for event in readable_events(runs)):
                steps = sum(isinstance(event, IterationEnded) for event in readable_events(runs))
                has_ended = any(isinstance(event, SourceEnded) for event in readable_events(runs))
                assert f", {2 * steps} s of " in outcome.lines[0]
                assert ("an attempt without an end" in outcome.out) is not has_ended
                printed.add((steps, has_ended))
        assert (2, False) in printed

    def test_torn(self, command, write):
        """A torn line is named, and all others are read."""
        path = write("a.jsonl", [*DISRUPTED, '{"job_name": "jo'])
        outcome = command("goodput", path)

        assert outcome.code == 2
        assert outcome.err == (
            f"trackside goodput: {path}: 1 of 18 line(s) hold no JSON object: line 18; all others were read\n"
        )
        assert outcome.lines[0] == "session job: goodput 30.6 %, 15 s of 49 s productive"

    def test_format(self, command, disrupted):
        """With --format events, a file of records is an error."""
        outcome = command("goodput", disrupted, "--format", "events")

        assert (outcome.code, outcome.out) == (2, "")
        assert "is no event log" in outcome.err

    def test_both(self, command, disrupted, write_run):
        """Logs and records together are two sessions."""
        outcome = command("goodput", disrupted, write_run(), "--session", "job", "--json")

        assert json.loads(outcome.out)["productive_s"] == 15.0
