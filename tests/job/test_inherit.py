"""Child processes of multiprocessing, really started, and the files that they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import attrs
import pytest

from trackside.events import CounterWindow, Event, Parent, Source, event, set_process_source
from trackside.handlers import check_logs, replay
from trackside.job import _inherit
from trackside.job._inherit import VARIABLE, announce, join_parent, withdraw


@event("test.inherit.said")
class Said(Event):
    """An event with a text."""

    text: str = ""


# A program as users write them: the module is imported again in spawned children.
PROGRAM = """
    import multiprocessing, sys, trackside
    from trackside import Event, event

    @event("test.inherit.said")
    class Said(Event):
        text: str = ""

    def work(text):
        trackside.log(Said(text=text))

    def work_with_a_job_of_its_own(directory):
        with trackside.start(directory, report=False):
            trackside.log(Said(text="own"))

    def count(text):
        trackside.counter("letters").add(len(text))

    def count_and_start(directory):
        count("abc")
        with trackside.start(directory, report=False):
            count("d")

    def do_nothing(_):
        pass

    def run(method, target, *texts):
        context = multiprocessing.get_context(method)
        children = [context.Process(target=target, args=(text,)) for text in texts]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0] * len(children)
"""


@pytest.fixture
def run(tmp_path):
    """Give a function that runs the program above with a main part, and returns what it printed."""

    def run_program(main, **environment):
        path = tmp_path / "train.py"
        body = f"if __name__ == '__main__':\n{textwrap.indent(textwrap.dedent(main), '    ')}"
        path.write_text(f"{textwrap.dedent(PROGRAM)}\n{body}\n")
        command = [sys.executable, "-X", "faulthandler", str(path), str(tmp_path / "runs")]
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=100, check=False, env={**os.environ, **environment}
        )
        assert (child.returncode, child.stderr) == (0, "")
        return child.stdout

    return run_program


def said_by(directory):
    """Return the texts that were logged, by source."""
    found = {}
    for said in replay(directory, to=Said):
        found.setdefault(said.source, []).append(said.text)
    return found


class TestChildren:
    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_files_of_their_own(self, run, tmp_path, method):
        """Each child writes a file of its own, as a worker of the process that started it."""
        main = f"""
            with trackside.start(sys.argv[1], report=False) as job:
                trackside.log(Said(text="parent"))
                run("{method}", work, "first", "second")
            print(job.source.id)
        """
        parent_id = run(main).strip()
        said = said_by(tmp_path / "runs")
        workers = [source for source in said if source.role == "worker"]

        assert sorted(said.values()) == [["first"], ["parent"], ["second"]]
        assert len({source.id for source in said}) == 3
        assert [source.parent for source in workers] == [Parent(parent_id, 0)] * 2
        assert [source.id for source in said if source.role == "main"] == [parent_id]
        assert len({source.run_id for source in said}) == 1

    def test_preloaded_fork_server(self, run, tmp_path):
        """
        Children of a fork server that has imported the main module have the process that started them as parent.

        Python 3.14 imports the main module there by default; a module that does the same stands for it here.
        """
        (tmp_path / "as_main.py").write_text(
            "import multiprocessing.process as process\n"
            "process.current_process()._inheriting = True\n"
            "import trackside\n"
            "del process.current_process()._inheriting\n"
        )
        main = """
            multiprocessing.set_forkserver_preload(["as_main"])
            with trackside.start(sys.argv[1], report=False) as job:
                run("forkserver", work, "first", "second")
            print(job.source.id)
        """
        parent_id = run(main, PYTHONPATH=str(tmp_path)).strip()
        said = said_by(tmp_path / "runs")

        assert sorted(said.values()) == [["first"], ["second"]]
        assert [(source.role, source.parent) for source in said] == [("worker", Parent(parent_id, 0))] * 2
        assert len({source.id for source in said}) == 2

    def test_default_fork_server(self, run, tmp_path):
        """With forkserver as the default, as from Python 3.14 on, children of all kinds have the right parent."""
        main = """
            from concurrent.futures import ProcessPoolExecutor
            multiprocessing.set_start_method("forkserver")
            with trackside.start(sys.argv[1], report=False) as job:
                run(None, work, "first")
                with ProcessPoolExecutor(1) as pool:
                    list(pool.map(work, ["second"]))
            print(job.source.id)
        """
        parent_id = run(main).strip()
        said = said_by(tmp_path / "runs")

        assert sorted(said.values()) == [["first"], ["second"]]
        assert [(source.role, source.parent) for source in said] == [("worker", Parent(parent_id, 0))] * 2

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_parent_under_another_id(self, run, tmp_path, method):
        """A child that is started after the parent's stream ended, and another began, has that one for a parent."""
        main = f"""
            from trackside.bus import default_bus
            with trackside.start(sys.argv[1], report=False):
                trackside.log(Said(text="before"))
                trackside.flush()
                default_bus.end("a pause")
                run("{method}", work, "child")
                trackside.log(Said(text="after"))
        """
        run(main)
        said = {text: source for source, texts in said_by(tmp_path / "runs").items() for text in texts}

        assert said["child"].parent == Parent(said["after"].id, 0)
        assert said["after"].id != said["before"].id

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_streams_are_whole(self, run, tmp_path, method):
        """A child's stream ends in good order, with nothing missing, though its process runs no atexit functions."""
        main = f"""
            with trackside.start(sys.argv[1], report=False):
                run("{method}", work, "first")
        """
        run(main)
        report = check_logs(tmp_path / "runs")

        assert [(source.source.role, source.ended, source.missing) for source in report.sources] == [
            ("main", "closed", 0),
            ("worker", "closed", 0),
        ]

    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_counters(self, run, tmp_path, method):
        """Counters of children are in their logs, each value once."""
        main = f"""
            with trackside.start(sys.argv[1], report=False):
                run("{method}", count, "abc", "de")
        """
        run(main)

        windows = [window for window in replay(tmp_path / "runs", to=CounterWindow) if window.source.role == "worker"]
        assert sorted((window.name, window.total_sum) for window in windows) == [("letters", 2), ("letters", 3)]

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_counters_before_a_job_of_its_own(self, run, tmp_path, method):
        """Counters of a child are in its parent's log until it turns telemetry on itself, and then in its own."""
        main = f"""
            with trackside.start(sys.argv[1], report=False):
                run("{method}", count_and_start, sys.argv[1] + "/../own")
        """
        run(main)

        totals = [
            [window.total_sum for window in replay(tmp_path / name, to=CounterWindow) if window.count]
            for name in ("runs", "own")
        ]
        assert totals == [[3], [1]]

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_silent_child(self, run, tmp_path, method):
        """A child that logs nothing makes no file."""
        main = f"""
            with trackside.start(sys.argv[1], report=False):
                run("{method}", do_nothing, "first")
        """
        run(main)

        assert [source.source.role for source in check_logs(tmp_path / "runs").sources] == ["main"]

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_job_of_its_own(self, run, tmp_path, method):
        """A child that turns telemetry on itself leaves its parent's log alone."""
        main = f"""
            with trackside.start(sys.argv[1], report=False):
                run("{method}", work_with_a_job_of_its_own, sys.argv[1] + "/../own")
        """
        run(main)

        assert list(said_by(tmp_path / "own").values()) == [["own"]]
        assert said_by(tmp_path / "runs") == {}

    def test_after_the_job(self, run, tmp_path):
        """Children that are started after the job has ended have no log."""
        main = """
            with trackside.start(sys.argv[1], report=False):
                trackside.log(Said(text="parent"))
            run("spawn", work, "late")
        """
        run(main)

        assert list(said_by(tmp_path / "runs").values()) == [["parent"]]

    def test_other_programs(self, run, tmp_path):
        """A program that the job starts, and that uses trackside too, is no child of the job."""
        main = """
            import subprocess
            program = "import trackside; print(trackside.wants(trackside.Event))"
            with trackside.start(sys.argv[1], report=False):
                subprocess.run([sys.executable, "-c", program], check=True)
        """
        assert run(main) == "False\n"
        assert [source.source.role for source in check_logs(tmp_path / "runs").sources] == ["main"]

    @pytest.mark.parametrize(
        "note",
        ["", "{", "[]", "null", '{"directory": 3, "source": {}}', '{"source": {}}', '{"directory": "/dev/null/x"}'],
    )
    def test_garbled_note(self, run, note):
        """A child starts whatever its environment holds about the parent."""
        main = """
            run("spawn", work, "text")
            print("fine")
        """
        assert run(main, **{VARIABLE: note}) == "fine\n"


class TestAnnounce:
    SOURCE = Source(id="0123456789abcdef", run_id="run-1", rank=3)

    @pytest.fixture(autouse=True)
    def clean(self, tmp_path):
        """Leave nothing in the environment."""
        yield
        withdraw(tmp_path)

    def test_note(self, tmp_path):
        """The environment variable says where the log is, of which process, and in which span that process was."""
        announce(tmp_path, self.SOURCE)
        note = json.loads(os.environ[VARIABLE])

        assert (note["directory"], note["span_id"]) == (str(tmp_path), 0)
        assert Source.from_wire(note["source"]) == self.SOURCE

    def test_metadata(self, tmp_path):
        """The run's metadata is in no environment, but in a file that this user alone can read, until the end."""
        announce(tmp_path, attrs.evolve(self.SOURCE, metadata={"token": "s3cret"}))
        assert not [name for name, value in os.environ.items() if "s3cret" in value]
        path = Path(json.loads(os.environ[VARIABLE])["metadata"])
        assert (path.stat().st_mode & 0o777, json.loads(path.read_text())) == (0o600, {"token": "s3cret"})
        withdraw(tmp_path)
        assert not path.exists()

    def test_another_id(self, tmp_path):
        """
        If the process goes on under another id, the environment names it; after the withdrawal it is not set again.
        """
        set_process_source(self.SOURCE)
        announce(tmp_path, self.SOURCE)
        other = attrs.evolve(self.SOURCE, id="f" * 16)
        set_process_source(other, instead_of=self.SOURCE)
        recorded = Source.from_wire(json.loads(os.environ[VARIABLE])["source"])
        withdraw(tmp_path)
        set_process_source(self.SOURCE, instead_of=other)
        set_process_source(None)

        assert recorded == other
        assert VARIABLE not in os.environ

    def test_withdraw(self, tmp_path):
        """After the withdrawal nothing of it is left; withdrawing again is harmless."""
        announce(tmp_path, self.SOURCE)
        withdraw(tmp_path)
        withdraw(tmp_path)

        assert VARIABLE not in os.environ

    def test_withdraw_of_another_job(self, tmp_path):
        """A job that ends leaves the note of another one, which began later on another bus."""
        announce(tmp_path, self.SOURCE)
        withdraw(tmp_path / "other")
        assert json.loads(os.environ[VARIABLE])["directory"] == str(tmp_path)

    def test_much_metadata(self, tmp_path):
        """With any amount of metadata in a job, programs can still be started: the environment variable stays short."""
        source = attrs.evolve(self.SOURCE, metadata={f"key {number}": "é" * 500 for number in range(60)})
        announce(tmp_path, source)
        done = subprocess.run([sys.executable, "-c", ""], check=False)
        note = json.loads(os.environ[VARIABLE])

        assert done.returncode == 0
        assert len(os.environ[VARIABLE]) < 16_384
        assert note["source"]["rank"] == 3

    def test_not_a_child(self, tmp_path):
        """A process that is no child of multiprocessing joins no job."""
        announce(tmp_path, self.SOURCE)

        assert not join_parent()


class TestLeftBehind:
    """Files of metadata whose process was killed."""

    @pytest.fixture
    def temporary(self, tmp_path, monkeypatch):
        """Let the directory of temporary files be one of the test's own, and age what is in it."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(_inherit, "_NEW_S", -1.0)
        yield tmp_path
        withdraw(tmp_path / "log")

    def announce(self, tmp_path):
        """Leave a note with metadata."""
        announce(tmp_path / "log", Source(id="a1", metadata={"token": "secret"}))

    def leave_file(self, temporary, name="trackside-left.json", mode=0o600):
        """Leave a file, as a killed process does."""
        path = temporary / name
        path.write_text('{"token": "old"}')
        path.chmod(mode)
        return path

    def test_is_removed(self, temporary):
        """The file of a process that was killed goes when a later job writes its own."""
        left = self.leave_file(temporary)
        self.announce(temporary)
        assert not left.exists()
        assert [json.loads(path.read_text()) for path in temporary.glob("trackside-*.json")] == [{"token": "secret"}]

    def test_of_a_running_process(self, temporary):
        """The file of a process that runs stays, whatever its id: it is locked."""
        program = f"""
            import tempfile, sys
            from trackside.events import Source
            from trackside.job._inherit import announce
            tempfile.tempdir = {str(temporary)!r}
            announce({str(temporary)!r}, Source(id="b2", metadata={{"token": "other"}}))
            print("announced", flush=True)
            sys.stdin.read()
        """
        child = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout.readline() == "announced\n"
        self.announce(temporary)
        values = sorted(json.loads(path.read_text())["token"] for path in temporary.glob("trackside-*.json"))
        assert values == ["other", "secret"]
        child.kill()
        child.communicate()
        withdraw(temporary / "log")
        self.announce(temporary)
        values = [json.loads(path.read_text())["token"] for path in temporary.glob("trackside-*.json")]
        assert values == ["secret"]

    @pytest.mark.parametrize(
        ("name", "mode"), [("trackside-x.txt", 0o600), ("other-x.json", 0o600), ("trackside-x.json", 0o644)]
    )
    def test_of_others(self, temporary, name, mode):
        """A file of another name, or that others may read, is none of ours and stays."""
        left = self.leave_file(temporary, name, mode)
        self.announce(temporary)
        assert left.exists()

    def test_new_file(self, temporary, monkeypatch):
        """A file of the last minute stays: its process may be about to lock it."""
        monkeypatch.setattr(_inherit, "_NEW_S", 60.0)
        left = self.leave_file(temporary)
        self.announce(temporary)
        assert left.exists()

    def test_link(self, temporary):
        """A link of that name is not followed, and its target stays."""
        target = self.leave_file(temporary, "target")
        (temporary / "trackside-link.json").symlink_to(target)
        self.announce(temporary)
        assert target.exists()
