"""The demo, run as `make demo` runs it but with a tiny model and a handful of steps."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import attrs
import pytest

import trackside
from trackside.events import IterationEnded, SectionWindow, SpanEnded, UnknownEvent
from trackside.handlers.models import SpanBuilder

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "examples" / "train_charlm.py"
TINY = "--width=16 --layers=1 --context=16 --batch-size=2 --workers=1".split()
STEPS = 60
KILL_AT = 50  # before that step; the checkpoint of step 39 is the latest then
SLOW_FROM, SLOW_MS = 20, 30
SLOW = f"--slow-from={SLOW_FROM} --slow-ms={SLOW_MS}".split()
EVERY = "--validate-every=20 --save-every=20".split()
RANKS = 2
VALIDATION_BATCHES = 8

pytestmark = [pytest.mark.integration, pytest.mark.torch, pytest.mark.hang_guard(300)]


@attrs.frozen
class Demo:
    """One run of the demo: its directory and its output."""

    out: Path
    status: int
    printed: str
    complained: str
    watched: str = ""
    """The output of the command for another terminal, if it was pasted."""

    def section(self, title):
        """Return the lines below *title*."""
        _, found, rest = self.printed.partition(f"\n{title}\n\n")
        assert found, self.printed
        return re.split(r"\n\n(?=\S)", rest)[0].splitlines()

    @property
    def commands(self):
        """Return the lines under the last title, which are commands to paste."""
        return [line.strip() for line in self.section("Look further") if line.strip()]

    def buckets(self):
        """Return the time by bucket: seconds and percent."""
        lines = map(re.compile(r" +(\S.*?) +([\d.]+) +([\d.]+)$").match, self.section("Where the time went"))
        return {line[1]: (float(line[2]), float(line[3])) for line in lines if line}


UNIT_S = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
QUIET = {**os.environ, "PYTHONWARNINGS": "ignore:The pynvml package is deprecated:FutureWarning"}
"""Torch warns so about a package that others of the environment need."""


def train(out, *options):
    command = [sys.executable, str(SCRIPT), f"--out={out}", *TINY, *EVERY, *options]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=240, check=False, env=QUIET)
    return Demo(out, ran.returncode, ran.stdout, ran.stderr)


def train_and_watch(out, *options):
    """Train, and meanwhile paste the demo's line into another terminal."""
    command = [sys.executable, str(SCRIPT), f"--out={out}", *TINY, *EVERY, *options]
    said, seen = out.parent / "said", out.parent / "seen"  # files: they are read while they are written
    with said.open("w") as stdout, seen.open("w") as shown:
        job = subprocess.Popen(command, cwd=REPOSITORY, stdout=stdout, stderr=subprocess.PIPE, text=True, env=QUIET)
        try:
            line = None
            while line is None and job.poll() is None:
                time.sleep(0.1)
                line = re.search("^Watch it from another terminal: (.*)\n", said.read_text(), re.MULTILINE)
            terminal = (
                subprocess.Popen(line[1], shell=True, cwd=REPOSITORY, stdout=shown, stderr=shown) if line else None
            )
            _, complained = job.communicate(timeout=240)
        finally:
            job.kill()
        if terminal is not None:
            try:
                terminal.wait(timeout=30)  # it ends when the job has
            finally:
                terminal.kill()
    return Demo(out, job.returncode, said.read_text(), complained, seen.read_text())


def iterations(out, kind="training", *, failed=False):
    return [
        event
        for event in trackside.replay(out, to=trackside.IterationEnded)
        if event.kind == kind and event.failed == failed
    ]


def step_times_ms(events):
    """Return the times from the end of one step to that of the next, without validation and checkpoints."""
    times_ms, before_ns, loading_ns, left_out_ns = [], None, None, 0
    for event in events:
        if isinstance(event, SpanEnded):
            if event.name == "data_loading":
                loading_ns = event.at_ns - event.duration_ns
            elif event.name in {"validation_loop", "checkpoint_load", "checkpoint_save_sync", "checkpoint_save_async"}:
                left_out_ns += event.duration_ns
        elif event.kind == "training" and not event.failed:
            start_ns = before_ns
            if start_ns is None:
                start_ns, left_out_ns = event.at_ns - event.duration_ns, 0
                start_ns = start_ns if loading_ns is None else min(start_ns, loading_ns)
            times_ms.append((event.at_ns - start_ns - left_out_ns) / 1e6)
            before_ns, left_out_ns = event.at_ns, 0
    return times_ms


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "a run"
    return train_and_watch(out, f"--steps={STEPS}", f"--kill-at={KILL_AT}", "--overhead-pairs=1", *SLOW)


@pytest.fixture(scope="module")
def kill(demo):
    return json.loads((demo.out / "kill.json").read_text())


class TestTraining:
    def test_ends_well(self, demo):
        """The demo succeeds and prints no warning, nor does torch."""
        assert (demo.status, demo.complained) == (0, "")

    def test_watched_from_another_terminal(self, demo):
        """A viewer started with the line that the demo prints sees both ranks, in both attempts, and the kill."""
        iterations_of = Counter(re.findall(r"rank (\d) .* iteration\.ended", demo.watched))

        assert set(iterations_of) == {"0", "1"}, demo.watched
        assert demo.watched.count("source.started  rank") >= 2 * RANKS
        assert re.search(r"rank\.silent  rank=1\b", demo.watched)

    def test_width(self, demo):
        """
        No line is wider than 100 columns, but for the commands, which may name a path that is long.
        """
        printed = demo.printed.partition("Look further")[0].splitlines()

        assert [line for line in printed if len(line) > 100 and "bin/trackside attach" not in line] == []

    def test_attempts(self, demo):
        """
        Both ranks have a stream in each of two attempts; the killed one's alone has no end.
        """
        ends = {
            (part.source.rank, part.source.attempt): part.ended
            for part in trackside.check_logs(demo.out).sources
            if part.source.role == "main"
        }

        assert ends == {(0, 0): "RuntimeError", (1, 0): None, (0, 1): "closed", (1, 1): "closed"}

    def test_steps(self, demo):
        """
        Rank 0 records each step that it trained once, and so does the restarted rank 1.
        """
        steps = {}
        for event in iterations(demo.out):
            steps.setdefault((event.source.rank, event.source.attempt), []).append(event.step)
        cut_short = steps.pop((1, 0), [])

        assert steps == {
            (0, 0): list(range(KILL_AT)),
            (0, 1): list(range(40, STEPS)),
            (1, 1): list(range(40, STEPS)),
        }
        assert cut_short == list(range(len(cut_short)))  # the events it had not written when it was killed are missing

    def test_broken_step(self, demo):
        """
        The one step that failed is the survivor's, before which the other rank was killed.
        """
        failed = [(event.source.rank, event.source.attempt, event.step) for event in iterations(demo.out, failed=True)]

        assert failed == [(0, 0, KILL_AT)]

    def test_work(self, demo):
        """
        Each step is of 2 texts of 16 characters on each of 2 ranks.
        """
        work = {(event.samples, event.tokens) for event in iterations(demo.out)}

        assert work == {(4, 64)}

    def test_validation(self, demo):
        """
        Rank 0 validates after steps 19 and 39 in the first attempt, after 59 in the second.
        """
        steps = Counter(
            (event.source.attempt, event.step) for event in iterations(demo.out, "validation") if event.source.rank == 0
        )

        assert steps == dict.fromkeys([(0, 19), (0, 39), (1, 59)], VALIDATION_BATCHES)

    def test_batches(self, demo):
        """
        The data loading processes that were not killed record every batch that they drew.
        """
        drawn = Counter(
            (event.source.role, event.source.rank)
            for event in trackside.replay(demo.out)
            if event_name(event) == "charlm.batch.drawn" and event.source.attempt == 1
        )

        assert drawn == {("worker", rank): STEPS - 40 for rank in range(RANKS)}

    def test_nothing_lost(self, demo):
        """
        No event is missing and no byte is damaged.
        """
        log = trackside.check_logs(demo.out)

        assert [part.missing for part in log.sources] == [0] * len(log.sources)
        assert sum(file.damaged_bytes for file in log.files) == 0

    def test_checkpoints(self, demo):
        """
        A checkpoint is kept after every 20 steps.
        """
        names = sorted(path.name for path in (demo.out / "checkpoints").iterdir())

        assert names == ["step-000019.pt", "step-000039.pt", "step-000059.pt"]


class TestSummary:
    def test_files(self, demo):
        """
        Every file of the log is named with its size.
        """
        for file in trackside.check_logs(demo.out).files:
            path = re.escape(str(file.path.relative_to(demo.out)))
            assert re.search(rf"^ +{path} +{file.size_bytes:,}$", demo.printed, re.MULTILINE)

    def test_counts(self, demo):
        """The table of events gives the number of iterations of each rank, and none for its workers."""
        kinds = ("training", "validation")
        everything = [event for kind in kinds for event in iterations(demo.out, kind)] + iterations(
            demo.out, failed=True
        )
        counts = Counter(event.source.rank for event in everything)

        assert re.search(rf"trackside.iteration.ended +{counts[0]} +0 +{counts[1]} +0$", demo.printed, re.MULTILINE)

    def test_spans(self, demo):
        """
        The tree of rank 0's second attempt has each kind of span where it was opened, with its count.
        """
        lines = demo.section("The spans of rank 0, attempt 1")
        recorded = [match.groups() for match in map(re.compile(r"    ( *)(\w+) +(\d+) ").match, lines) if match]

        assert [(len(indent) // 2, name, int(count)) for indent, name, count in recorded] == [
            (0, "application", 1),
            (1, "distributed_code_initialization", 1),
            (1, "model_initialization", 1),
            (1, "optimizer_initialization", 1),
            (1, "checkpoint_load", 1),
            (1, "data_loader_initialization", 2),
            (1, "training_loop", 1),
            (2, "training_single_iteration", 20),
            (3, "data_loading", 20),
            (3, "zero_grad", 20),
            (3, "model_forward", 20),
            (3, "model_backward", 20),
            (3, "optimizer_update", 20),
            (2, "validation_loop", 1),
            (3, "validation_single_iteration", 8),
            (2, "write_sample", 1),
            (2, "checkpoint_save_sync", 1),
        ]

    def test_open_spans(self, demo):
        """
        The spans that were open in the killed rank are named, as in its log: the application, and those inside it.
        """
        builder = SpanBuilder()
        trackside.feed(trackside.replay(demo.out), builder)
        (killed,) = [source for source in builder.result().sources if source.role == "main" and source.ended_ns is None]
        names = [span.name for span in killed.open]

        assert names[0] == "application"
        recorded = ", ".join(rf"{name} \([\d.]+ s\)" for name in names)
        printed = " ".join(demo.printed.split())  # the line may be wrapped
        assert re.search(rf" Rank 1, attempt 0, open: {recorded}\. ", printed)

    @pytest.mark.parametrize(("rank", "attempt"), [(0, 0), (0, 1), (1, 1)])
    def test_metrics(self, demo, rank, attempt):
        """
        Steps, their mean, least and greatest time, and the last loss are those of the iterations in the log.
        """
        events = [
            event
            for event in trackside.replay(demo.out, to=(IterationEnded, SpanEnded))
            if (event.source.rank, event.source.attempt, event.source.role) == (rank, attempt, "main")
        ]
        steps = [
            event
            for event in events
            if isinstance(event, IterationEnded) and event.kind == "training" and not event.failed
        ]
        lasted_ms = step_times_ms(events)

        (line,) = [line for line in demo.section("Training") if f"rank {rank}, attempt {attempt}" in line]
        count, mean_ms, min_ms, _, max_ms, _, _, loss = [
            float(cell.replace(",", "")) for cell in line.split(f"attempt {attempt}")[1].split()
        ]
        assert count == len(steps)
        assert (mean_ms, min_ms, max_ms) == pytest.approx(
            (sum(lasted_ms) / len(steps), min(lasted_ms), max(lasted_ms)), rel=1e-3
        )
        assert loss == pytest.approx(steps[-1].loss, rel=1e-3)

    def test_saved(self, demo):
        """
        The second attempt saved one checkpoint, with which all 60 steps are safe.
        """
        size_bytes = (demo.out / "checkpoints" / "step-000059.pt").stat().st_size

        assert re.search(
            rf"Checkpoints: 1 saved in [\d.]+ s, 0 failed; each {size_bytes:,} bytes; {STEPS} steps are safe\.",
            demo.printed,
        )

    def test_counters(self, demo):
        """
        The counter counted each step of the three streams that were not cut short.
        """
        (line,) = [line for line in demo.section("Counters, over all ranks") if "train.loss (nats/char)" in line]

        assert int(line.split()[2]) >= KILL_AT + 2 * (STEPS - 40)

    def test_costs(self, demo):
        """The cost of telemetry is given in percent, for each of its measurements."""
        recorded = "\n".join(demo.section("What telemetry cost"))

        assert len(re.findall(r"^ +\S.* [+-]?\d+\.\d\d % ", recorded, re.MULTILINE)) == 3

    def test_ends(self, demo):
        """The report and the trace are written, and the output ends with three commands to look further."""
        assert (demo.out / "report.html").read_text().startswith("<!DOCTYPE html>")
        assert json.loads((demo.out / "trace.json").read_text())["traceEvents"]
        assert len(demo.commands) == 3
        assert demo.printed.rstrip().endswith(demo.commands[-1])

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_commands_run(self, demo, place):
        """The suggested commands can be pasted as they are."""
        command = demo.commands[place]

        ran = subprocess.run(
            shlex.split(command), cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
        )

        assert (ran.returncode, ran.stderr) == (0, "")
        assert ran.stdout


class TestStragglers:
    def test_truth(self, demo):
        """The script prints which rank it slowed down, from when on and by how much."""
        assert f"from step {SLOW_FROM} on rank 1 took {SLOW_MS} ms longer" in "\n".join(demo.section("Who is slow"))

    def test_named(self, demo):
        """
        Telemetry names the rank, the section and the score, equal to the values computed here from the windows, and
        since when: not before all scores are low, by chance perhaps, and not after the rank was slow.
        """
        scores = scores_by_first_step(demo.out)
        since = None
        for (_, first_step), score in sorted(scores.items()):
            since = (first_step if since is None else since) if score < 0.75 else None
        last = scores[max(scores)]

        recorded = "\n".join(demo.section("Who is slow"))

        assert since is not None
        assert since <= SLOW_FROM
        low = rf"score {last:.2f}, low since the window that began at step (\d+)\n"
        found = re.search(f"rank 1 is slow: section data_loading, {low}", recorded)
        assert found is not None
        assert since <= int(found[1]) <= SLOW_FROM


class TestGoodput:
    def test_truth(self, demo, kill):
        """The script prints which rank it killed, before which step, and that 10 steps had to be repeated."""
        recorded = "\n".join(demo.section("Where the time went"))

        assert (kill["rank"], kill["step"], kill["resumes_at"]) == (1, KILL_AT, 40)
        assert "rank 1 was killed at" in recorded
        assert f"before its step {KILL_AT}." in recorded
        assert "went on at step 40. 10 steps were lost:" in recorded

    def test_total(self, demo):
        """
        All buckets together are all of the time.
        """
        buckets = demo.buckets()
        total_s, total_percent = buckets.pop("total")

        assert total_percent == 100.0
        assert sum(spent_s for spent_s, _ in buckets.values()) == pytest.approx(total_s, abs=0.005 * len(buckets))

    def test_wasted(self, demo, kill):
        """
        The wasted progress is within one step of the truth: the steps since the checkpoint and the one that broke off.
        """
        noticed_s = json.loads((demo.out / "witness.json").read_text())["noticed_s"]
        broken_s = noticed_s - kill["at_s"]

        wasted_s, _ = demo.buckets()["WASTED_PROGRESS_FROM_DISRUPTION"]

        assert f"{kill['lost_s']:.2f} s, and {broken_s:.2f} s until" in demo.printed
        assert (
            abs(wasted_s - kill["lost_s"] - broken_s) <= kill["longest_step_s"] + 0.01
        )  # the printed values are rounded

    def test_command(self, demo):
        """The command for more details prints the same account, with a total of 100.0 %."""
        (command,) = [command for command in demo.commands if " goodput " in command]
        ran = subprocess.run(
            shlex.split(command), cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
        )
        lines = map(
            re.compile(r"  (\S.*?)  +([\d.,]+) (µs|ms|s|min) +([\d.]+) %(?:  (\S+))?$").match, ran.stdout.splitlines()
        )
        recorded = {
            f"{line[5]}: {line[1]}" if line[5] == "CUSTOM_BADPUT_EVENTS" else line[5] or line[1]: (
                float(line[2]) * UNIT_S[line[3]],
                float(line[4]),
            )
            for line in lines
            if line
        }

        assert recorded["total"][1] == 100.0
        assert recorded["total"][1] == pytest.approx(sum(percent for _, percent in recorded.values()) / 2, abs=1e-9)
        buckets = demo.buckets()
        # Parts of what no bucket has are named by the command, as the time before the first step.
        named_s = sum(spent_s for name, (spent_s, _) in recorded.items() if name not in {"total", *buckets})
        for bucket, (spent_s, _) in buckets.items():  # those without time are left out
            found_s = recorded.get(bucket, (0.0, 0.0))[0]
            if bucket == "OTHER":  # of its parts the command shows those of 0.05 % and more
                found_s += named_s
            # The command reads all events, and of two ranks that lost about as much it may take the other one.
            assert found_s == pytest.approx(spent_s, abs=0.006 + 0.003 * buckets["total"][0], rel=0.005)

    def test_recovery(self, demo, kill):
        """The recovery lasts from the last event of the killed attempt until the next one began."""
        restart = json.loads((demo.out / "restart.json").read_text())
        noticed_s = json.loads((demo.out / "witness.json").read_text())["noticed_s"]

        recovery_s, _ = demo.buckets()["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"]

        # Closing telemetry, and starting it, may take a moment: a long one where others need the machine too.
        assert recovery_s == pytest.approx(restart["began_s"] - noticed_s, abs=4.0)


class TestResume:
    def test_goes_on(self, tmp_path):
        """
        A job that is started again goes on after its latest checkpoint and repeats no step before it.
        """
        train(tmp_path, "--steps=20", "--kill-at=-1", "--overhead-pairs=0")
        again = train(tmp_path, "--steps=25", "--kill-at=-1", "--overhead-pairs=0")

        assert [event.step for event in iterations(tmp_path) if event.source.rank == 0] == list(range(25))
        assert "going on from step-000019.pt" in again.printed
        assert "killed" not in again.printed


def scores_by_first_step(out):
    """Return rank 1's score in data loading in each window that both ranks are in, by attempt and first step."""
    medians = {}
    for event in trackside.replay(out, to=SectionWindow):
        source = event.source
        median_ns = event.median_ns[event.names.index("data_loading")]
        medians.setdefault((source.attempt, event.window), {})[source.rank] = event.first_step, median_ns
    both = {key: ranks for key, ranks in sorted(medians.items()) if len(ranks) == RANKS}
    return {(attempt, ranks[1][0]): min(ranks[0][1], ranks[1][1]) / ranks[1][1] for (attempt, _), ranks in both.items()}


def event_name(event):
    return event.name if isinstance(event, UnknownEvent) else event.wire_name
