"""The real jobs of the test bed: their labels, how they are launched, and the compact form of their logs."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import attrs

from trackside.events import CounterWindow, JobConfigured, SourceStarted
from trackside.handlers import replay
from trackside.report import read_report

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("verdict_bed", HERE / "bed.py")
bed = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bed)
Labelled = bed.Labelled
RECORDED = HERE / "recorded"
TRACEML = RECORDED / "traceml.json"
"""By job, TraceML's diagnosis of the run whose logs are recorded, and the rank that it names."""
HANG_GUARD_S = 600
"""A real job takes some seconds, and minutes on an overloaded machine."""
TRACEML_STEPS = frozenset({"INPUT_STRAGGLER", "COMPUTE_STRAGGLER", "H2D_STRAGGLER", "STRAGGLER"})


def _slow(cause, kind="straggler", section=None, since=0, **more):
    """Return a label of a cause on rank 1."""
    return Labelled(cause=cause, kind=kind, rank=1, section=section, since=since, **more)


def _of_steps(loop):
    """Yield the causes within a step that every loop of `job.py` has."""
    within = 10 if loop == "sections" else 5
    parts = {
        "sections": ("data_loading", "forward", "backward", "optimizer"),
    }.get(loop, (bed.DATA, bed.FORWARD, bed.BACKWARD, bed.OPTIMIZER))
    named = {"loop": loop, "within": within}
    yield Labelled(cause="healthy", kind=None, loop=loop)
    yield _slow("one rank's data", "input-bound", parts[0], **named)
    yield _slow("forward", section=parts[1], **named)
    yield _slow("backward", section=parts[2], **named)
    yield _slow("optimizer", section=parts[3], **named)
    yield _slow("user code between the parts", section=bed.OUTSIDE, **named)
    yield _slow("slow from half on", section=parts[1], since=40, **named)
    yield _slow("recovers half-way", section=bed.OUTSIDE, since=15, **named)
    yield Labelled(cause="all ranks' data", kind="input-bound", section=parts[0], loop=loop)
    yield Labelled(cause="heavy network", kind="waiting", loop=loop)
    yield Labelled(cause="NaN", kind="not-finite", rank=1, since=30, within=0, loop=loop)


def _of_processes(loop):
    """Yield the causes that concern a whole process, in a loop of `job.py`."""
    yield Labelled(cause="killed", kind="died", rank=1, loop=loop)
    yield Labelled(cause="raised", kind="exception", rank=1, since=60, within=0, loop=loop)
    yield Labelled(cause="out of memory", kind="out-of-memory", rank=1, since=60, within=0, loop=loop)
    yield Labelled(cause="log missing", kind="missing-rank", rank=1, loop=loop)


def _plain():
    for labelled in _of_steps("plain"):
        yield attrs.evolve(labelled, has_traceml=labelled.cause != "NaN")
    for cause, kind in (("a pause every 10 steps", "pauses"), ("a pause every 10 steps on all ranks", "pauses")):
        rank = None if "all" in cause else 1
        yield Labelled(cause=cause, kind=kind, rank=rank, loop="plain", has_traceml=True)
    yield Labelled(cause="healthy and noisy", kind=None, loop="plain", has_traceml=True)
    yield Labelled(cause="checkpoint-bound", kind="checkpoints", loop="plain", has_traceml=True)
    yield Labelled(cause="evaluation-bound", kind="evaluation", loop="plain", has_traceml=True)
    yield Labelled(cause="startup-bound", kind="startup", loop="plain")
    yield from _of_processes("plain")
    yield Labelled(cause="log truncated", kind="died", rank=1, loop="plain")
    yield Labelled(cause="hung in its loader", kind="stopped", rank=1, section="data_loading", loop="plain")
    yield Labelled(cause="hung in user code", kind="stopped", rank=1, loop="plain")
    yield Labelled(cause="hung in a lock", kind="stopped", rank=1, loop="plain")
    yield Labelled(cause="hung in a barrier", kind="stopped", rank=1, ranks=3, loop="plain")


def _by_hand():
    yield from _of_steps("sections")
    yield Labelled(cause="restarted", kind="restarts", loop="sections")


def _launched_bare():
    """Yield jobs whose launcher sets only RANK, WORLD_SIZE and the address to meet at."""
    wanted = {"healthy", "one rank's data", "forward", "user code between the parts"}
    yield from (labelled for labelled in _of_steps("bare") if labelled.cause in wanted)
    yield from (labelled for labelled in _of_processes("bare") if labelled.cause != "out of memory")


def _frameworks():
    slow = {
        "one rank's data": ("input-bound", bed.DATA),
        "forward": ("straggler", bed.FORWARD),
        "backward": ("straggler", bed.BACKWARD),
        "optimizer": ("straggler", bed.OPTIMIZER),
        "user code between the parts": ("straggler", bed.OUTSIDE),
    }
    jobs = {
        "lightning": ("one rank's data", "backward", "user code between the parts"),
        "transformers": ("forward",),
        "accelerate": ("user code between the parts",),
        "workers": ("one rank's data", "optimizer"),
    }
    for loop, causes in jobs.items():
        has_traceml = loop in {"lightning", "transformers"}  # the loops that it instruments by itself
        yield Labelled(cause="healthy", kind=None, loop=loop, has_traceml=has_traceml)
        for cause in causes:
            yield _slow(cause, *slow[cause], loop=loop, has_traceml=has_traceml)
    for loop in ("lightning", "transformers"):
        yield Labelled(cause="checkpoint-bound", kind="checkpoints", loop=loop, has_traceml=True)
        yield Labelled(cause="log missing", kind="missing-rank", rank=1, loop=loop)
        yield Labelled(cause="hung in its loader", kind="stopped", rank=1, section="data_loading", loop=loop)
        for where in ("user code", "a lock", "a barrier"):
            yield Labelled(cause=f"hung in {where}", kind="stopped", rank=1, loop=loop)
    for loop in ("lightning", "transformers", "accelerate"):
        has_traceml = loop != "accelerate"
        yield Labelled(cause="evaluation-bound", kind="evaluation", loop=loop, has_traceml=has_traceml)
        yield Labelled(cause="raised", kind="exception", rank=1, since=50, within=1, loop=loop)
        yield Labelled(cause="sys.exit", kind="exception", rank=1, since=50, within=1, loop=loop)
    yield Labelled(cause="restarted from a checkpoint", kind="restarts", rank=1, loop="transformers")
    yield Labelled(cause="a pause every 10 steps", kind="pauses", rank=1, loop="lightning", has_traceml=True)
    yield Labelled(cause="NaN in a stat", kind="not-finite", rank=0, since=30, within=2, loop="workers")
    yield Labelled(cause="all ranks' data", kind="input-bound", section=bed.DATA, loop="workers")
    yield Labelled(cause="log truncated", kind="died", rank=1, loop="workers")


def _untuned():
    """Yield jobs that no rule was made for: they were written after the rules."""
    yield Labelled(cause="uneven lengths", kind=None, loop="plain")
    yield Labelled(cause="slow ranks in turn", kind="waiting", loop="plain")
    yield Labelled(cause="accumulated, healthy", kind=None, loop="plain")
    yield _slow("accumulated, forward", section=bed.OUTSIDE, loop="plain")
    yield _slow("a lock", section=bed.OUTSIDE, loop="plain", within=10)
    yield Labelled(cause="checkpoints of one rank", kind="checkpoints", rank=0, loop="plain")
    yield Labelled(cause="evaluations of one rank", kind="evaluation", rank=0, loop="plain")
    yield Labelled(cause="a worker of the loader is killed", kind="exception", rank=1, since=50, within=3, loop="plain")


LOOPS = {
    "plain": "plain loop, torchrun",
    "bare": "plain loop, RANK and WORLD_SIZE alone",
    "sections": "sections by hand",
    "workers": "loader with workers",
    "lightning": "Lightning",
    "transformers": "Transformers",
    "accelerate": "Accelerate",
}
_ALL = (*_plain(), *_launched_bare(), *_by_hand(), *_frameworks(), *_untuned())
REAL = {f"{LOOPS[labelled.loop]}: {labelled.cause}": labelled for labelled in _ALL}
IN_CI = tuple(
    f"{LOOPS['plain']}: {cause}"
    for cause in ("healthy", "one rank's data", "forward", "user code between the parts", "killed", "raised")
)
"""Jobs that CI runs for real; of all it judges the recorded logs."""


# --- running -------------------------------------------------------------------------------------------------------


def is_installed(labelled):
    """Return whether the package of the job's loop is installed."""
    is_own = labelled.loop in {"plain", "bare", "sections", "workers"}
    return is_own or importlib.util.find_spec(labelled.loop) is not None


def run_real(labelled, directory, *, beside_traceml=False):
    """Run the real job *labelled*, and return the directory of its logs."""
    logs = directory / "runs"
    loop = labelled.loop
    program = "job.py" if loop in {"plain", "bare", "sections"} else "framework_job.py"
    job = [str(HERE / program), loop, labelled.cause, str(logs)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TRACKSIDE_")}
    variables["OMP_NUM_THREADS"] = "1"
    variables["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # an attempt would read addresses of the one before
    if loop == "bare":
        _launch_bare([sys.executable, *job], variables, directory, labelled.ranks)
    elif beside_traceml:
        launcher = [str(Path(sys.executable).with_name("traceml")), "run", "--mode", "summary"]
        launcher += ["--nproc-per-node", str(labelled.ranks), "--logs-dir", str(directory), "--run-name", "traceml"]
        _launch([*launcher, job[0], "--args", *job[1:]], {**variables, "VERDICTS_TRACEML": "1"})
    else:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={labelled.ranks}"]
        launcher += [
            "--monitor-interval=3"
        ]  # on a busy machine it would end the healthy rank before that prints the reason
        launcher += ["--max-restarts=1"] if labelled.cause.startswith("restarted") else []
        _launch([*launcher, *job], variables)
    return logs


def _launch(command, variables):
    subprocess.run(command, env=variables, capture_output=True, timeout=HANG_GUARD_S, check=False)


def _launch_bare(command, variables, directory, ranks):
    """Start every rank by itself, as a launcher without knowledge of torch does."""
    ours = {"VERDICTS_MEET": str(directory / "meet"), "WORLD_SIZE": str(ranks)}
    with Path(os.devnull).open("w", encoding="utf-8") as nothing:
        processes = [
            subprocess.Popen(command, env={**variables, **ours, "RANK": str(rank)}, stdout=nothing, stderr=nothing)
            for rank in range(ranks)
        ]
        for process in processes:
            process.wait(HANG_GUARD_S)


def damage(labelled, logs):
    """Damage the logs of a job as its label says."""
    if labelled.cause == "log missing" and labelled.loop in {"lightning", "transformers"}:  # the callback writes on all
        for log in logs.rglob("rank-00001.*.tslog"):
            log.unlink()
    if labelled.cause == "log truncated":
        (log,) = logs.rglob("rank-00001.*.tslog")
        os.truncate(log, log.stat().st_size * 6 // 10)


def traceml_says(directory):
    """Return TraceML's primary diagnosis of a run, and the rank that it names; None where it named none."""
    found = directory / "traceml" / "final_summary.json"
    if not found.exists():
        return "NO_SUMMARY", None
    diagnosis = json.loads(found.read_text(encoding="utf-8"))["primary_diagnosis"]
    kind = diagnosis["kind"]
    if kind not in TRACEML_STEPS:
        return kind, None
    # If it measured no cause, it says around which rank to look.
    named = re.search(r"\br(\d+)\b", diagnosis["action"])
    return kind, int(named[1]) if named else ((diagnosis.get("evidence") or {}).get("worst") or {}).get("rank")


def traceml_is_right(labelled, kind, rank):
    """Return whether TraceML named the rank, or if no rank is to blame, the cause; only its explicit claims count."""
    if labelled.kind is None:
        return rank is None and kind != "INPUT_BOUND"
    if labelled.rank is not None:
        is_input = labelled.kind == "input-bound"
        return rank == labelled.rank and is_input == (kind == "INPUT_STRAGGLER")
    return rank is None and kind == ("INPUT_BOUND" if labelled.kind == "input-bound" else "RESIDUAL_HEAVY")


# --- recorded logs -------------------------------------------------------------------------------------------------


def recording(name):
    """Return the file in which the logs of the job *name* are kept."""
    words = "".join(one if one.isalnum() else " " for one in name.lower().replace("'", "")).split()
    return RECORDED / f"{'-'.join(words)}.tar.xz"


def _is_kept(event):
    """Return whether the verdict may need *event*: derived figures and other counters are left out."""
    is_counter = isinstance(event, CounterWindow)
    return "loss" in event.name or "memory" in event.name if is_counter else not type(event).derived


def _cleaned(event):
    """Return *event* without the name and the paths of the machine."""
    if isinstance(event, SourceStarted):
        return attrs.evolve(event, identity={**event.identity, "host": "node0"})
    if isinstance(event, JobConfigured):
        return attrs.evolve(event, node_name="node0")
    values = {one.name: getattr(event, one.name) for one in attrs.fields(type(event))}
    return attrs.evolve(event, **{name: _neutral(own) for name, own in values.items() if isinstance(own, (str, dict))})


_OF_THE_MACHINE = re.compile(r"/\S*?/(?=site-packages/|src/|lib/python|tests/|runs)")


def _neutral(value):
    if isinstance(value, str):
        return _OF_THE_MACHINE.sub("/", value)
    if isinstance(value, dict):
        return {key: _neutral(own) for key, own in value.items()}
    return value


def record(logs, file):
    """Write the logs of a job that ran into *file*, without data of the machine."""
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "runs"
        by_source = {}
        for event in filter(_is_kept, replay(logs)):
            by_source.setdefault(event.source, []).append(_cleaned(event))
        for source, events in by_source.items():
            bed.write_log(root, attrs.evolve(source, host="node0", metadata={}, versions={}), events)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as archive:
            archive.add(root, arcname="runs", filter=_anonymous)
        file.write_bytes(packed.getvalue())


def _anonymous(info):
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def unpacked(name, directory):
    """Return the directory of the recorded logs of the job *name*, unpacked into *directory*."""
    with tarfile.open(recording(name)) as archive:
        archive.extractall(directory, filter="data")
    return directory / "runs"


def replayed(name, directory):
    """Return the report on the recorded logs of the job *name*."""
    return read_report(unpacked(name, directory))


def judge(name, directory, *, keep=False):
    """Run the job *name*, beside TraceML if that is possible; return the faults of the verdict."""
    labelled = REAL[name]
    beside = labelled.has_traceml and importlib.util.find_spec("traceml_ai") is not None
    logs = run_real(labelled, directory, beside_traceml=beside)
    damage(labelled, logs)
    mistakes = labelled.mistakes(read_report(logs).verdict)
    if keep:
        record(logs, recording(name))
    if keep and beside:
        known = json.loads(TRACEML.read_text(encoding="utf-8")) if TRACEML.exists() else {}
        known[name] = traceml_says(directory)
        TRACEML.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return mistakes


def traceml_mistakes(name):
    """Return whether TraceML was wrong about the recorded run of the job *name*; None if it was not attached to it."""
    known = json.loads(TRACEML.read_text(encoding="utf-8")) if TRACEML.exists() else {}
    return not traceml_is_right(REAL[name], *known[name]) if name in known else None
