"""The test bed of the verdict: jobs with one known cause or none, simulated, and the finding that must come first."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import attrs

from framing import write_log
from processes import Process
from trackside.events import (
    ClockAnchored,
    CounterWindow,
    ExceptionRaised,
    Heartbeat,
    IterationEnded,
    Source,
    SourceEnded,
    SourceStarted,
    SpanStarted,
)
from windows import section_window

S = 10**9
START_NS = 1_700_000_000 * S
WINDOW_STEPS = 20
DATA, USER, FORWARD, BACKWARD, OPTIMIZER = "data_loading", "user", "model_forward", "model_backward", "optimizer_update"
OUTSIDE = "outside measured parts"


def nothing(rank, step, part):
    """Delay nothing."""
    return 0.0


def delayed(part, by_s, *, ranks=(1,), since=0, until=10**9, every=1):
    """Return a function that delays *part* on *ranks*; on every rank if that is None."""

    def delay(rank, step, own):
        is_due = (ranks is None or rank in ranks) and since <= step < until and step % every == every - 1
        return by_s if own == part and is_due else 0.0

    return delay


def unequal(rank, step, part):
    """Let the forward pass of rank 1 take 30 ms longer, and that of rank 2 by 20 ms."""
    return {(1, FORWARD): 0.03, (2, FORWARD): 0.02}.get((rank, part), 0.0)


def gradual(rank, step, part):
    """Let the forward pass of rank 1 become longer by 1 ms every four steps."""
    return 0.001 * (step // 4) if (rank, part) == (1, FORWARD) else 0.0


def now_and_then(rank, step, part):
    """Let the forward pass of rank 1 take 40 ms longer in every second stretch of 30 steps."""
    return 0.04 * (step // 30 % 2) if (rank, part) == (1, FORWARD) else 0.0


def in_another_order(rank, step, part):
    """Let all but rank 1 wait longer for their data, by 15 ms, and rank 1 take 45 ms longer in its forward pass."""
    return {DATA: 0.015 * (rank != 1), FORWARD: 0.045 * (rank == 1)}.get(part, 0.0)


@attrs.define(kw_only=True)
class SimulatedJob:
    """A job of ranks that meet in each step, and its faults."""

    ranks: int = 8
    steps: int = 120
    style: str = "ddp"
    """The span that contains the exchange: ``ddp`` none, ``backward`` model_backward, ``sections`` a section."""
    delay: Callable[[int, int, str], float] = nothing
    noise: float = 0.05
    stumbles: float = 0.0
    """The share of a rank's steps that take longer for no reason."""
    stumble_s: float = 0.02
    """By how much those do."""
    exchange_s: float = 0.003
    per_host: int = 4
    clock_s: float = 0.0
    """The largest difference between the clocks of hosts."""
    killed: tuple[int, ...] = ()
    raised: tuple[str, str] | None = None
    """The exception that ends rank 1."""
    stops_at: int | None = None
    hang_s: float = 0.0
    not_finite_since: int | None = None
    stat_of_loss: bool = False
    """Whether the loss is recorded in a stat, and not with the iterations."""
    startup_s: float = 0.1
    first_batch_s: float = 0.0
    batch_s: float = 0.0
    """The time that each rank's loader needs for a batch, while the rank computes, too; rank 1's began later."""
    save_s: float = 0.0
    evaluation_s: float = 0.0
    stands_still: tuple[int, ...] | None = None
    """The ranks that save or evaluate, while the others wait where no span measures it; None if all do."""
    lags: float = 1.0
    """The factor by which rank 1 takes longer over these; the others wait for it in a barrier."""
    comes_late_s: float = 0.0
    """The time by which rank 1 begins to save or evaluate later, and the others wait for it within theirs."""
    barrier: str = ""
    """The span in which they do; empty if there is none."""
    missing: tuple[int, ...] = ()
    names_run: bool = True
    restarts: int = 0
    seed: int = 0

    def write(self, directory):
        """Write the logs of all ranks, and return the directory."""
        rng = random.Random(self.seed)
        for attempt in range(self.restarts + 1):
            self._attempt(directory, rng, attempt)
        return directory

    def _attempt(self, directory, rng, attempt):
        is_last = attempt == self.restarts
        start_ns = START_NS + attempt * 60 * S
        logs = []
        for rank in range(self.ranks):
            host = rank // self.per_host
            source = Source(
                id=f"{self.seed:04x}{attempt:04x}{rank:08x}",
                run_id="job" if self.names_run else f"run-{rank:012x}",
                attempt=attempt, rank=rank, world_size=self.ranks, host=f"node{host}", pid=100 + rank,
            )  # fmt: skip
            logs.append(Log(source, start_ns + round(host * self.clock_s * S), round(self.startup_s * S)))
        steps = range(self.steps) if is_last else range(self.steps // 2)
        stops_at = self.stops_at if is_last else None
        for step in steps:
            if step == stops_at:
                break
            self._step(logs, rng, step)
        for log in logs:
            self._end(log, stops_at, is_last=is_last)
            if log.source.rank not in self.missing:
                write_log(directory, log.source, log.events)

    def _step(self, logs, rng, step):
        lengths = []
        for log in logs:
            rank = log.source.rank
            means = {DATA: 0.002, USER: 0.0005, FORWARD: 0.01, BACKWARD: 0.02, OPTIMIZER: 0.001}
            own = {name: mean * max(0.2, rng.gauss(1, self.noise)) + self.delay(rank, step, name)
                   for name, mean in means.items()}  # fmt: skip
            own[DATA] += self.first_batch_s * (step == 0)
            if self.batch_s:
                is_there_s = self.startup_s + self.batch_s * (step + 1 + 0.25 * (rank == 1))
                own[DATA] += max(0.0, is_there_s - (log.met_ns - START_NS) / S)
            own[USER] += self.stumble_s * (rng.random() < self.stumbles)
            lengths.append({name: round(S * length) for name, length in own.items()})
        arrived = max(log.met_ns + sum(own.values()) - own[OPTIMIZER] for log, own in zip(logs, lengths, strict=True))
        left = arrived + round(self.exchange_s * S)
        for log, own in zip(logs, lengths, strict=True):
            loss = float("nan") if self.not_finite_since is not None and step >= self.not_finite_since else 2.0
            log.step(step, own, left, self.style, None if self.stat_of_loss else loss)
            if self.stat_of_loss:
                log.record_loss(step, loss)
            is_at_work = self.stands_still is None or log.source.rank in self.stands_still
            is_behind = log.source.rank == 1
            for name, length_s in (("checkpoint_save_sync", self.save_s), ("validation_loop", self.evaluation_s)):
                if not length_s or step % 20 != 19:
                    continue
                own_ns = round(length_s / 2 * S)
                behind_ns = round(own_ns * (self.lags - 1))
                late_ns = round(self.comes_late_s * S)
                log.stand_still("", late_ns * is_behind, step)
                own_ns += behind_ns * is_behind + late_ns * (not is_behind)
                log.stand_still(name if is_at_work else "", own_ns, step)
                if behind_ns and not is_behind:
                    log.stand_still(self.barrier, behind_ns, step)

    def _end(self, log, stops_at, *, is_last):
        rank = log.source.rank
        if not is_last:
            return
        if rank in self.killed:
            return
        if self.hang_s:
            name = "save_to_bucket" if rank == 1 else "waiting"
            log.add(SpanStarted, name=name, span_id=10**6, parent_span_id=0, step=stops_at)
            log.at_ns += round(self.hang_s * S)
            log.add(Heartbeat, sequence=1)
            return
        if self.raised is not None:
            kind, message = self.raised if rank == 1 else ("RuntimeError", "Connection closed by peer")
            log.at_ns += 0 if rank == 1 else S
            log.add(ExceptionRaised, type=kind, message=message, span_name="", step=stops_at)
            log.add(SourceEnded, reason=kind)
            return
        log.at_ns += 10 * S if self.killed else 0
        log.add(SourceEnded, reason="exit")


class Log(Process):
    """The events of one process."""

    def __init__(self, source, at_ns, startup_ns):
        super().__init__(source, at_ns=at_ns)
        self.offset_ns = at_ns - START_NS - source.attempt * 60 * S
        self.add(SourceStarted, identity=source.to_wire())
        self.add(ClockAnchored, mono_ns=1, wall_ns=at_ns, offset_ns=0, uncertainty_ns=100)
        self.at_ns += startup_ns
        self.window = {}
        self.losses = []

    @property
    def met_ns(self):
        """The time on a clock that all ranks share."""
        return self.at_ns - self.offset_ns

    def step(self, step, own, left_ns, style, loss):
        """Make one step: the parts, and the exchange after the backward pass, which all leave at *left_ns*."""
        began_ns, iteration = self.at_ns, next(self.ids)
        for name in (DATA, USER, FORWARD, BACKWARD):
            length_ns = own[name]
            if name == BACKWARD and style == "backward":
                length_ns = left_ns + self.offset_ns - self.at_ns
            self._part(step, name, length_ns, iteration=iteration, style=style)
        if style != "backward":
            name = "all_reduce" if style == "sections" else USER
            self._part(step, name, left_ns - self.met_ns, iteration=iteration, style=style)
        self._part(step, OPTIMIZER, own[OPTIMIZER], iteration=iteration, style=style)
        self.add(IterationEnded, span_id=iteration, step=step, duration_ns=self.at_ns - began_ns, samples=8, loss=loss)
        if style == "sections" and step % WINDOW_STEPS == WINDOW_STEPS - 1:
            place = {"window": step // WINDOW_STEPS, "steps": WINDOW_STEPS, "at_ns": self.at_ns}
            self.put(section_window(self.window, waits=["all_reduce"], start_ns=self.at_ns - S, **place))
            self.window = {}

    def record_loss(self, step, loss):
        """Record the loss of a step in a stat, whose windows have 20 steps."""
        self.losses.append(loss)
        if step % WINDOW_STEPS == WINDOW_STEPS - 1:
            finite = [own for own in self.losses if math.isfinite(own)]
            self.add(
                CounterWindow, name="train/loss", start_ns=self.at_ns - S, end_ns=self.at_ns, count=len(finite),
                values={"mean": statistics.fmean(finite)} if finite else {}, total_count=0, total_sum=0.0,
                non_finite=len(self.losses) - len(finite), before_non_finite=len(finite),
            )  # fmt: skip
            self.losses = []

    def _part(self, step, name, length_ns, *, iteration, style):
        if name != USER and style != "sections":
            self.spend(name, length_ns, parent=iteration, step=step)
            return
        self.at_ns += length_ns
        if name != USER:
            self.window.setdefault(name, []).append(float(length_ns))

    def stand_still(self, name, length_ns, step):
        """Spend time between two steps, in the span *name*; in none if that is empty."""
        if name:
            self.spend_long(name, length_ns, step=step)
        else:
            self.at_ns += length_ns


@attrs.frozen(kw_only=True)
class Labelled:
    """A job and the finding that the verdict must begin with."""

    cause: str
    kind: str | None
    """None if there is no fault."""
    rank: int | None = None
    section: str | None = None
    """None if it does not matter."""
    since: int | None = None
    within: int = 5
    """The allowed distance of the step from `since`."""
    job: SimulatedJob | None = None
    beside: tuple[int, ...] = ()
    """Ranks that are slow as well, and must be named too."""
    loop: str = ""
    """
    Of a real job: the source of its training loop, a framework (`framework_job.py`) or `job.py`; empty if simulated.
    """
    ranks: int = 2
    """Of a real job."""
    has_traceml: bool = False
    """Of a real job: whether TraceML can watch it too."""

    def mistakes(self, verdict):
        """Return the faults of *verdict*; empty if there are none."""
        found = verdict.findings
        if self.kind is None:
            if self.loop:  # few steps may truly take less time than starting up
                found = [finding for finding in found if finding.kind != "startup"]
            is_green = verdict.state == "good" or len(found) < len(verdict.findings)
            return [f"accused: {finding.title}" for finding in found] + ([] if is_green else ["not green"])
        if not found:
            return ["nothing found"]
        first = found[0]
        wrong = []
        if first.kind != self.kind:
            wrong.append(f"{first.kind} instead of {self.kind}: {first.title}")
        if self.rank is not None and first.rank != self.rank:
            wrong.append(f"rank {first.rank} instead of {self.rank}")
        if self.section is not None and first.section != self.section:
            wrong.append(f"{first.section} instead of {self.section}")
        if self.since is not None and (first.since_step is None or abs(first.since_step - self.since) > self.within):
            wrong.append(f"since step {first.since_step} instead of {self.since}")
        others = found if self.rank is None else found[1:]
        of_ranks = [one for one in others if one.kind in {"straggler", "input-bound", "pauses"}]
        accused = [one for one in of_ranks if one.rank not in {None, *self.beside}]
        wrong += [f"accused too: {one.title}" for one in accused]
        wrong += [f"rank {rank} not named" for rank in self.beside if rank not in {one.rank for one in of_ranks}]
        return wrong


def _of_one_rank():
    """Yield the causes that lie with one rank, in each size and style."""
    causes = {
        "one rank's data": (delayed(DATA, 0.02), "input-bound", DATA, 0),
        "forward": (delayed(FORWARD, 0.02), "straggler", FORWARD, 0),
        "optimizer": (delayed(OPTIMIZER, 0.02), "straggler", OPTIMIZER, 0),
        "user code between the parts": (delayed(USER, 0.02), "straggler", OUTSIDE, 0),
        "slow from half on": (delayed(FORWARD, 0.02, since=60), "straggler", FORWARD, 60),
        "recovers half-way": (delayed(USER, 0.03, since=20, until=80), "straggler", OUTSIDE, 20),
        "a pause every 10 steps": (delayed(USER, 0.2, every=10), "straggler", OUTSIDE, None),
    }
    for ranks in (2, 8, 64):
        for style in ("ddp", "backward", "sections"):
            for cause, (delay, kind, section, since) in causes.items():
                if ranks == 64 and style == "backward":
                    continue  # to save time
                within = WINDOW_STEPS if style == "sections" else 5
                # Windows of sections do not say which step is long.
                is_pause = cause == "a pause every 10 steps" and style != "sections"
                job = SimulatedJob(ranks=ranks, style=style, delay=delay, seed=len(cause))
                yield (
                    f"{cause}, {ranks} ranks, {style}",
                    Labelled(
                        cause=cause,
                        kind="pauses" if is_pause else kind,
                        rank=1,
                        section=None if is_pause else section,
                        since=since,
                        within=within,
                        job=job,
                    ),
                )
        job = SimulatedJob(ranks=ranks, delay=delayed(BACKWARD, 0.02))
        yield (
            f"backward, {ranks} ranks",
            Labelled(cause="backward", kind="straggler", rank=1, section=BACKWARD, since=0, job=job),
        )


def _of_all_ranks():
    everybody = None
    for style in ("ddp", "backward", "sections"):
        job = SimulatedJob(style=style, delay=delayed(DATA, 0.05, ranks=everybody))
        yield f"all ranks' data, {style}", Labelled(cause="all ranks' data", kind="input-bound", section=DATA, job=job)
    for ranks in (2, 8):
        job = SimulatedJob(ranks=ranks, batch_s=0.08)
        yield (
            f"all ranks' data, by workers, {ranks} ranks",
            Labelled(cause="all ranks' data", kind="input-bound", section=DATA, job=job),
        )
    job = SimulatedJob(style="sections", exchange_s=0.08)
    yield "heavy network", Labelled(cause="heavy network", kind="waiting", section="all_reduce", job=job)
    job = SimulatedJob(delay=delayed(USER, 0.2, ranks=everybody, every=20))
    yield "pauses on all ranks", Labelled(cause="a pause every N steps", kind="pauses", job=job)
    job = SimulatedJob(ranks=16, delay=delayed(FORWARD, 0.02, ranks=(4, 5)))
    yield (
        "two ranks on one host",
        Labelled(cause="two slow ranks on one host", kind="straggler", rank=4, section=FORWARD, since=0, job=job),
    )
    for style in ("ddp", "backward", "sections"):
        job = SimulatedJob(ranks=3, style=style, delay=unequal)
        yield (
            f"two slow ranks of three, {style}",
            Labelled(
                cause="two slow ranks of three",
                kind="straggler",
                rank=1,
                beside=(2,),
                section=FORWARD,
                since=0,
                job=job,
            ),
        )
    for ranks in (2, 8):
        job = SimulatedJob(ranks=ranks, delay=in_another_order)
        yield (
            f"in another order, {ranks} ranks",
            Labelled(
                cause="in another order than its peers",
                kind="straggler",
                rank=1,
                section=FORWARD,
                since=0,
                job=job,
            ),
        )
    job = SimulatedJob(ranks=8, delay=delayed(USER, 0.02), clock_s=0.05)
    yield (
        "clocks apart",
        Labelled(cause="user code between the parts", kind="straggler", rank=1, section=OUTSIDE, since=0, job=job),
    )
    job = SimulatedJob(save_s=2.0)
    yield "checkpoints", Labelled(cause="checkpoint-bound", kind="checkpoints", job=job)
    job = SimulatedJob(evaluation_s=4.0)
    yield "evaluation", Labelled(cause="evaluation-bound", kind="evaluation", job=job)
    # The job's account is by chance that of the rank that evaluates, or of one that waits for it.
    for rank in (0, 7):
        job = SimulatedJob(save_s=2.0, stands_still=(rank,))
        yield f"checkpoints of rank {rank}", Labelled(cause="checkpoint-bound", kind="checkpoints", rank=rank, job=job)
        job = SimulatedJob(evaluation_s=4.0, stands_still=(rank,))
        yield f"evaluation of rank {rank}", Labelled(cause="evaluation-bound", kind="evaluation", rank=rank, job=job)
    for ranks in (2, 8):
        job = SimulatedJob(ranks=ranks, save_s=0.4, comes_late_s=1.0)
        yield (
            f"checkpoints that wait for rank 1, {ranks} ranks",
            Labelled(cause="checkpoint-bound", kind="checkpoints", rank=1, job=job),
        )
    for style in ("ddp", "backward", "sections"):
        for barrier, ranks, delay in (("barrier", 2, nothing), ("", 2, nothing), ("barrier", 8, delayed(FORWARD, 0.02)),
                                      ("", 2, delayed(FORWARD, 0.02))):  # fmt: skip
            job = SimulatedJob(ranks=ranks, style=style, delay=delay, evaluation_s=2.0, lags=3.0, barrier=barrier)
            steps = "healthy" if delay is nothing else "slow"
            yield (
                f"slow evaluation before a {barrier or 'wait that no span measures'}, {steps} steps, {style}",
                Labelled(
                    cause="evaluation that ends in a barrier",
                    kind="evaluation",
                    rank=1,
                    beside=() if delay is nothing else (1,),
                    job=job,
                ),
            )
    job = SimulatedJob(startup_s=20.0)
    yield "startup", Labelled(cause="startup-bound", kind="startup", job=job)


def _failures():
    for ranks in (2, 64):
        job = SimulatedJob(ranks=ranks, killed=(1,), stops_at=90)
        yield f"killed, {ranks} ranks", Labelled(cause="killed", kind="died", rank=1, since=89, job=job)
        job = SimulatedJob(ranks=ranks, raised=("ValueError", "bad batch"), stops_at=90)
        yield f"raised, {ranks} ranks", Labelled(cause="raised", kind="exception", rank=1, since=90, job=job)
        job = SimulatedJob(ranks=ranks, raised=("OutOfMemoryError", "CUDA out of memory."), stops_at=90)
        yield (
            f"out of memory, {ranks} ranks",
            Labelled(cause="out of memory", kind="out-of-memory", rank=1, since=90, job=job),
        )
        job = SimulatedJob(ranks=ranks, not_finite_since=70)
        yield f"NaN, {ranks} ranks", Labelled(cause="NaN", kind="not-finite", rank=0, since=70, job=job)
        job = SimulatedJob(ranks=ranks, not_finite_since=70, stat_of_loss=True)
        yield (
            f"NaN in a stat, {ranks} ranks",
            Labelled(cause="NaN", kind="not-finite", rank=0, since=70, within=1, job=job),
        )
    job = SimulatedJob(killed=tuple(range(8)), stops_at=90)
    yield "all killed", Labelled(cause="killed", kind="died", job=job)
    job = SimulatedJob(stops_at=90, hang_s=600)
    yield (
        "hung",
        Labelled(cause="hung in a barrier", kind="stopped", rank=1, section="save_to_bucket", since=89, job=job),
    )
    job = SimulatedJob(ranks=2, raised=("FileNotFoundError", "data/train.bin"), missing=(0,), stops_at=0)
    yield "raised before another rank wrote", Labelled(cause="raised", kind="exception", rank=1, job=job)
    job = SimulatedJob(missing=(3,))
    yield "log missing", Labelled(cause="log missing", kind="missing-rank", rank=3, job=job)
    job = SimulatedJob(names_run=False, missing=(3,))
    yield "log missing, no run id", Labelled(cause="log missing", kind="missing-rank", rank=3, job=job)
    job = SimulatedJob(names_run=False, delay=delayed(FORWARD, 0.02))
    yield "forward, no run id", Labelled(cause="forward", kind="straggler", rank=1, section=FORWARD, since=0, job=job)
    job = SimulatedJob(restarts=1)
    yield "restarted", Labelled(cause="restarted", kind="restarts", job=job)


def _large():
    job = SimulatedJob(ranks=1024, steps=60, per_host=8, delay=delayed(USER, 0.02, ranks=(700,), since=20))
    yield (
        "user code, 1,024 ranks",
        Labelled(cause="user code between the parts", kind="straggler", rank=700, section=OUTSIDE, since=20, job=job),
    )
    job = SimulatedJob(ranks=1024, steps=60, per_host=8)
    yield "healthy, 1,024 ranks", Labelled(cause="healthy", kind=None, job=job)


def healthy(seed):
    """Return a job without a fault, on a noisy machine."""
    rng = random.Random(seed)
    ranks = rng.choice((2, 3, 4, 8, 16))
    return SimulatedJob(
        ranks=ranks,
        steps=rng.choice((60, 120, 200)),
        style=rng.choice(("ddp", "backward", "sections")),
        noise=rng.choice((0.02, 0.1, 0.2, 0.3)),
        stumbles=rng.choice((0.0, 0.01, 0.03)),
        # Of more ranks one stumbles in most steps, so that they do wait for each other.
        stumble_s=rng.choice((0.02, 0.1)) if ranks <= 4 else 0.02,
        seed=seed,
    )


JOBS = dict([*_of_one_rank(), *_of_all_ranks(), *_failures()])
LARGE = dict(_large())
JOBS["healthy"] = Labelled(cause="healthy", kind=None, job=SimulatedJob())
JOBS["healthy, workers start for long"] = Labelled(cause="healthy", kind=None, job=SimulatedJob(first_batch_s=2.5))
JOBS["startup-bound, by the first batch"] = Labelled(
    cause="startup-bound", kind="startup", job=SimulatedJob(first_batch_s=5)
)
JOBS["healthy, of few steps"] = Labelled(cause="healthy", kind=None, job=SimulatedJob(startup_s=2.5))
JOBS["forward, of few steps"] = Labelled(
    cause="forward",
    kind="straggler",
    rank=1,
    section=FORWARD,
    since=0,
    job=SimulatedJob(startup_s=2.9, steps=60, delay=delayed(FORWARD, 0.02)),
)
for _cause, _delay, _ranks, _since in (
    ("becomes slow gradually", gradual, 2, 30),
    ("slow now and then", now_and_then, 2, 30),
    ("slow now and then, 4 ranks", now_and_then, 4, 30),
):
    JOBS[_cause] = Labelled(
        cause=_cause.partition(",")[0],
        kind="straggler",
        rank=1,
        section=FORWARD,
        since=_since,
        within=20 if _delay is gradual else 5,
        job=SimulatedJob(ranks=_ranks, steps=200, delay=_delay),
    )
JOBS["a pause every 40 steps, in one rank's data"] = Labelled(
    cause="a pause every N steps",
    kind="pauses",
    rank=1,
    section=DATA,
    since=39,
    job=SimulatedJob(ranks=2, steps=200, delay=delayed(DATA, 0.5, every=40)),
)
for _style, _ranks in (("ddp", 2), ("backward", 8)):
    JOBS[f"long pauses, {_ranks} ranks"] = Labelled(
        cause="long pauses",
        kind="pauses",
        rank=1,
        since=39,
        job=SimulatedJob(
            ranks=_ranks, steps=200, style=_style, delay=delayed(USER, 3.0, since=30, until=170, every=40)
        ),
    )
JOBS["healthy and noisy"] = Labelled(
    cause="healthy and noisy", kind=None, job=SimulatedJob(noise=0.25, stumbles=0.02, seed=3)
)
