"""The tools below the Makefile: environments that are made once, and interpreters that are found."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def load(name):
    """Load a tool as it is when it runs: it imports from its own folder."""
    if str(ROOT / "tools") not in sys.path:
        sys.path.append(str(ROOT / "tools"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command, cwd=ROOT):
    """Return what *command* printed; it builds the core, whatever these tests run with."""
    environ = {name: value for name, value in os.environ.items() if name != "TRACKSIDE_PURE_PYTHON"}
    return subprocess.run(command, check=True, cwd=cwd, env=environ, capture_output=True, text=True).stdout


class TestEveryPython:
    every_python = load("every_python")

    def script(self, tmp_path, body):
        """Return an executable that answers as a Python would, or does not."""
        path = tmp_path / "python3.12"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def test_usable(self, tmp_path):
        """An interpreter that answers and can make environments is found."""
        path = self.script(tmp_path, """echo '{"version": [3, 12, 7], "free_threaded": false, "usable": true}'""")
        assert self.every_python.probe(path) == ((3, 12, 7), path, (), False)

    def test_without_the_interpreter_lock(self, tmp_path):
        """An interpreter without the lock goes by the name that its executable has, and not by that of its version."""
        path = self.script(tmp_path, """echo '{"version": [3, 14, 7], "free_threaded": true, "usable": true}'""")
        found = self.every_python.probe(path)
        assert (found.name, str(found)) == ("3.14t", "Python 3.14.7t")

    @pytest.mark.parametrize(
        "body",
        [
            """echo '{"version": [3, 12, 7], "usable": false}'""",
            """echo '{"version": [3, 9, 18], "usable": true}'""",
            "exit 127",
            "echo 'no such version'",
        ],
        ids=["unusable", "too old", "not chosen in pyenv", "no answer"],
    )
    def test_not_usable(self, tmp_path, body):
        """An executable that does not run, is too old or cannot make environments is skipped."""
        assert self.every_python.probe(self.script(tmp_path, body)) is None

    def test_not_there(self, tmp_path):
        """A path that leads nowhere is skipped."""
        assert self.every_python.probe(tmp_path / "python3.12") is None

    def test_the_probe_itself(self):
        """A real interpreter, asked what it is, says its version; one of an environment is not taken."""
        in_environment = sys.prefix != sys.base_prefix
        assert self.every_python.probe(load("environment").base_python()).version == sys.version_info[:3]
        assert (self.every_python.probe(Path(sys.executable)) is None) is in_environment

    def test_newest_of_each(self, monkeypatch):
        """Of several interpreters of one minor version the newest is taken, and none of this one's."""
        interpreter = self.every_python.Interpreter
        found = [
            interpreter((3, 12, 9), Path("b")),
            interpreter((3, 12, 10), Path("a")),
            interpreter((3, 11, 1), Path("c")),
            interpreter((3, 10, 2), Path("d")),
        ]
        monkeypatch.setattr(self.every_python, "candidates", lambda: range(4))
        monkeypatch.setattr(self.every_python, "probe", found.__getitem__)
        assert self.every_python.others(interpreter((3, 11, 7), Path("e"))) == [found[3], found[1]]

    def test_says_what_is_untested(self, capsys):
        """A supported version that was not run is called untested, with the reason."""
        ran = [self.every_python.Interpreter((3, minor, 0), Path("p")) for minor in (10, 11, 12, 14)]
        outcomes = [self.every_python.Outcome(each, "passed", 1.0) for each in ran]
        self.every_python.report(outcomes, {"3.15": "a chroot needs root"}, left_out=("3.13",))
        assert capsys.readouterr().out.splitlines()[5:] == [
            "untested: 3.13 (left to make test-all)",
            "untested: 3.14t (not on this machine; make test-all provides it)",
            "untested: 3.15 (a chroot needs root)",
        ]

    def test_missing_is_no_failure(self, monkeypatch, tmp_path):
        """An interpreter that cannot be provided is reported with the reason, and the others are still asked for."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # not the user's, where another run may be at work
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        monkeypatch.setattr(self.every_python.interpreters, "SOURCES", {})
        missing = {"3.14": "a chroot needs root", "3.15": "a chroot needs root"}
        assert self.every_python.provide(["3.14", "3.15"]) == ([], missing)


class TestMeasure:
    """``--measure`` with four further interpreters, the runs themselves replaced by a record of their arguments."""

    every_python = load("every_python")

    @pytest.fixture
    def runs(self, monkeypatch, tmp_path):
        """Give the runs on further interpreters: their names, whether all tests run, and whether they are measured."""
        interpreter = self.every_python.Interpreter
        found = [interpreter((3, minor, 0), Path("python")) for minor in (10, 12, 13, 14)]
        monkeypatch.setattr(self.every_python, "COVERAGE", tmp_path)  # not that of the run this test is part of
        monkeypatch.setattr(self.every_python, "others", lambda this: found)
        monkeypatch.setattr(self.every_python.subprocess, "run", lambda *command, **options: Finished())
        outcome = self.every_python.Outcome
        ran = []

        def note(interpreter, python, *arguments, is_measured=False, **variables):
            ran.append((interpreter.name + "".join(variables), "tests/bus" not in arguments, is_measured))
            return outcome(interpreter, "passed", 0.0)

        monkeypatch.setattr(self.every_python, "run_tests", note)
        assert self.every_python.main(["--measure"]) == 0
        assert ran[:2] == [(ran[0][0], True, False), (f"{ran[0][0]}TRACKSIDE_PURE_PYTHON", True, False)]
        return ran[2:]

    def test_one_runs_all(self, runs):
        """3.14 runs all its tests and is measured; the others run those of the core, and 3.13 is left to test-all."""
        assert runs == [("3.10", False, False), ("3.12", False, False), ("3.14", True, True)]

    def test_core_exists(self):
        """Each folder of the core's tests exists: pytest would end the run at a missing one."""
        assert [folder for folder in self.every_python.CORE if not (ROOT / "tests" / folder).is_dir()] == []


class Finished:
    returncode = 0
    stdout = ""


class TestInterpreters:
    interpreters = load("interpreters")

    @pytest.fixture(autouse=True)
    def cache(self, monkeypatch, tmp_path):
        """Use another cache than that of real runs."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        return tmp_path / "trackside"

    @pytest.mark.parametrize(
        ("command", "reason"),
        [
            (["false"], "false failed: no word"),
            (["sh", "-c", "echo one >&2; echo two >&2; exit 3"], "sh failed: two"),
            (["no-such-command"], "no-such-command: "),
        ],
    )
    def test_says_what_failed(self, command, reason):
        """A command that fails is named, with the last line that it wrote."""
        with pytest.raises(self.interpreters.NotProvidedError, match=re.escape(reason)):
            self.interpreters.run(*command)

    def test_built_once(self, monkeypatch, cache):
        """An archive in the cache is used without a network or a compiler."""
        monkeypatch.setattr(self.interpreters, "run", None)
        python = cache / "cpython-3.14.7t" / "bin" / "python3.14t"
        python.parent.mkdir(parents=True)
        python.touch()
        assert self.interpreters.provide("3.14t") == (python, ())

    def test_other_sources(self, tmp_path):
        """An archive that is not the expected one is refused before anything of it is unpacked."""
        address = tmp_path / "sources"
        address.write_text("not CPython")
        with pytest.raises(self.interpreters.NotProvidedError, match="sources: not the archive that was expected"):
            self.interpreters.download(address.as_uri(), tmp_path / "archive", "0" * 64)

    def test_no_network(self, tmp_path):
        """If an archive cannot be downloaded, the reason is that of the system."""
        with pytest.raises(self.interpreters.NotProvidedError, match=r"sources: .*No such file"):
            self.interpreters.download((tmp_path / "sources").as_uri(), tmp_path / "archive", "0" * 64)

    def test_no_answer(self, monkeypatch):
        """If Debian cannot be reached, that is reported at once, and neither debootstrap nor apt is called."""
        monkeypatch.setattr(self.interpreters.os, "geteuid", lambda: 0)
        monkeypatch.setattr(self.interpreters, "mirror", lambda: "http://127.0.0.1:9/debian/")  # discard: no server
        monkeypatch.setattr(self.interpreters, "run", None)
        with pytest.raises(self.interpreters.NotProvidedError, match="the Debian archive does not answer: "):
            self.interpreters.provide("3.15")

    def test_no_cache(self, monkeypatch, tmp_path):
        """If there is no place for a cache, no interpreter is provided, with that as the reason."""
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        with pytest.raises(self.interpreters.NotProvidedError, match="there is no cache: "):
            self.interpreters.provide("3.14t")

    @pytest.mark.parametrize(
        ("answer", "mirror"),
        [
            ("http://one/debian-security\nhttp://two/debian/\n", "http://two/debian/"),
            ("http://three/debian\n", "http://three/debian/"),
        ],
    )
    def test_mirror(self, monkeypatch, answer, mirror):
        """Archives come from the mirror that apt uses."""
        monkeypatch.setattr(self.interpreters, "run", lambda *command: answer)
        assert self.interpreters.mirror() == mirror

    def test_no_mirror(self, monkeypatch):
        """A machine whose apt has no Debian archive gets an error that says so."""
        monkeypatch.setattr(self.interpreters, "run", lambda *command: "http://one/ubuntu\n")
        with pytest.raises(self.interpreters.NotProvidedError, match="apt knows no Debian archive here"):
            self.interpreters.mirror()


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Make an environment with trackside and its dependencies, and no more."""
    directory = tmp_path_factory.mktemp("environment") / "venv"
    said = run(sys.executable, "tools/environment.py", directory)
    return directory, said


@pytest.mark.integration
@pytest.mark.hang_guard(600)
class TestEnvironment:
    def test_says_that_it_is_ready(self, environment):
        """Making an environment ends with a line that says so."""
        assert ": ready, " in environment[1].splitlines()[-1]

    def test_has_only_what_trackside_needs(self, environment):
        """Without an extra, only the four libraries, and theirs, are installed."""
        python = environment[0] / "bin" / "python"
        listed = run(python, "-m", "pip", "list", "--format", "freeze", "--disable-pip-version-check").splitlines()
        names = {line.partition("==")[0].partition(" ")[0].lower() for line in listed}
        theirs = {"pip", "setuptools", "typing_extensions", "typing-extensions", "exceptiongroup"}
        assert names - theirs == {"trackside", "attrs", "cattrs", "msgpack", "pyzmq"}

    def test_runs(self, environment, tmp_path):
        """Trackside works in it, from anywhere."""
        python = environment[0] / "bin" / "python"
        assert run(python, "-c", "import trackside; print(trackside.Event.__name__)", cwd=tmp_path) == "Event\n"

    def test_is_left_alone(self, environment):
        """A second call finds nothing to do and prints nothing."""
        assert run(sys.executable, "tools/environment.py", environment[0]) == ""

    def test_grows(self, environment):
        """Extras of a later call are added."""
        assert "lint" in run(sys.executable, "tools/environment.py", environment[0], "--group", "lint")
        assert (environment[0] / "bin" / "ruff").exists()


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Build the wheel and list its files."""
    directory = tmp_path_factory.mktemp("wheel")
    constraint = ("--build-constraint", "requirements.lock")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", *constraint, "--wheel-dir", directory, ".")
    (wheel,) = directory.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.integration
@pytest.mark.hang_guard(300)
class TestWheel:
    def test_claims_one_name(self, names):
        """The wheel installs one package into site-packages, and the module of its command, whose name says so."""
        tops = {name.partition("/")[0] for name in names}
        assert {top for top in tops if not top.endswith(".dist-info")} == {"trackside", "_trackside_command.py"}

    def test_is_typed(self, names):
        """Type checkers find the marker that says that trackside is typed."""
        assert "trackside/py.typed" in names

    def test_has_the_header(self, names):
        """Extensions find the header where `trackside.get_include` says, below the package."""
        assert "trackside/include/trackside.h" in names

    def test_carries_the_licence(self, names):
        """The licence comes with it."""
        assert any(name.endswith("/licenses/LICENSE") for name in names)


class TestDist:
    dist = load("dist")
    WHOLE = (
        "trackside/__init__.py",
        "trackside/include/trackside.h",
        "trackside/py.typed",
        "_trackside_command.py",
        "trackside/_native.cpython-312-x86_64-linux-gnu.so",
        "trackside-0.2.0.dist-info/METADATA",
        "trackside-0.2.0.dist-info/licenses/LICENSE",
    )

    def wheel(self, tmp_path, names):
        """Return a wheel of empty files of these names."""
        path = tmp_path / "trackside-0.2.0-cp312-cp312-linux_x86_64.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name in names:
                archive.writestr(name, "")
        return path

    def test_whole(self, tmp_path):
        """A wheel with the package, its marker, the licence and one compiled core may go out."""
        assert self.dist.wrong_with(self.wheel(tmp_path, self.WHOLE), "compiled") == []

    @pytest.mark.parametrize(
        ("missing", "problem"),
        [
            ("trackside/py.typed", "trackside/py.typed is missing"),
            ("_trackside_command.py", "_trackside_command.py is missing"),
            ("trackside-0.2.0.dist-info/licenses/LICENSE", "the licence is missing"),
            ("trackside/include/trackside.h", "trackside/include/trackside.h is missing"),
            (WHOLE[4], "0 compiled cores in a wheel that is to be compiled"),
        ],
    )
    def test_missing(self, tmp_path, missing, problem):
        """A missing file in a wheel is named."""
        names = [name for name in self.WHOLE if name != missing]
        assert self.dist.wrong_with(self.wheel(tmp_path, names), "compiled") == [problem]

    def test_added(self, tmp_path):
        """Tests do not belong in a wheel, nor a compiled core in the pure one."""
        wheel = self.wheel(tmp_path, [*self.WHOLE, "tests/test_tools.py"])
        assert self.dist.wrong_with(wheel, "pure") == [
            "tests/test_tools.py does not belong there",
            "1 compiled cores in a wheel that is to be pure",
        ]

    def test_too_large(self, tmp_path):
        """A wheel of a megabyte is refused."""
        wheel = self.wheel(tmp_path, self.WHOLE)
        with zipfile.ZipFile(wheel, "a") as archive:
            archive.writestr("trackside/large.txt", bytes(1_000_000), zipfile.ZIP_STORED)
        (problem,) = self.dist.wrong_with(wheel, "compiled")
        assert problem.endswith("bytes, and 1,000,000 are too many")

    def test_not_reproducible(self, tmp_path):
        """Two builds that differ are refused; this one writes where it was to build."""
        python = tmp_path / "python"
        python.write_text('#!/bin/sh\nmkdir -p "$7" && echo "$7" > "$7/one.whl"\n')
        python.chmod(0o755)
        builder = self.dist.Interpreter((3, 12, 0), python)
        with pytest.raises(self.dist.NotReleasableError, match=r"one\.whl: built twice"):
            self.dist.built_twice(builder, "wheel", [tmp_path, tmp_path], tmp_path / "scratch")


class TestTwice:
    """A test fails for as long as a file is missing, which the first run makes."""

    twice = load("twice")

    @pytest.mark.parametrize(
        ("leaves", "listed", "status", "is_unsteady"),
        [
            pytest.param("left", "", 1, True, id="at first only"),
            pytest.param("left", "test_one.py::test_unsteady  # issue 7", 0, True, id="at first only, and listed"),
            pytest.param("else", "test_one.py::test_unsteady", 1, False, id="always"),
        ],
    )
    def test_failure(self, tmp_path, capfd, *, leaves, listed, status, is_unsteady):
        """A test that fails once only is reported, and fails the run unless it is listed."""
        (tmp_path / "tests").mkdir()
        (tmp_path / "tests" / "unsteady.txt").write_text(f"# a comment\n{listed}\n")
        source = f"""
            import pathlib
            def test_steady(): pass
            def test_unsteady():
                there = pathlib.Path("left").exists()
                pathlib.Path("{leaves}").touch()
                assert there
        """
        (tmp_path / "test_one.py").write_text(textwrap.dedent(source))
        assert self.twice.main(["-q", "--numprocesses", "0"], tmp_path) == status
        assert ("UNSTEADY" in capfd.readouterr().out) is is_unsteady


class TestBenchmarks:
    def test_a_family_that_fails(self, monkeypatch, capsys):
        """A family that cannot be measured is reported with the reason, and the next one is measured all the same."""
        monkeypatch.syspath_prepend(ROOT)
        from benchmarks import __main__ as main
        from benchmarks.measure import Row, Timing

        def rows(family, *, is_full):
            if family == "goodput":
                raise ZeroDivisionError("float division by zero")
            return [Row("an operation", Timing(1, 1, 1), "peer", Timing(2, 2, 2), 1.0, 0.5)]

        monkeypatch.setattr(main, "measured", rows)
        monkeypatch.setattr(sys, "argv", ["benchmarks", "goodput", "frames"])
        assert main.main() == 1
        lines = capsys.readouterr().out.splitlines()
        assert [line.split("  ")[0] for line in lines[2:]] == ["an operation", "goodput"]
        assert lines[-1].endswith("NOT MEASURED: ZeroDivisionError: float division by zero")


class TestServers:
    servers = load("servers")

    def test_there_already(self):
        """A program that is installed is left alone."""
        assert self.servers.main(["sh"]) == "servers: sh: there already"

    def test_no_apt(self, monkeypatch, tmp_path):
        """If nothing can be installed, one line names the missing ones and the reason, and the exit code is 0."""
        monkeypatch.setattr(self.servers, "PLACES", str(tmp_path))
        recorded = self.servers.main(["no-such-server"])
        assert recorded == "servers: without no-such-server (there is no apt-get): their tests are skipped"
