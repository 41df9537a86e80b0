"""The command as a process: codes, streams, pipes."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trackside.cli import main
from trackside.cli._main import build_parser
from trackside.events import __version__

NOT_THERE = f"trackside info: {os.devnull}/runs: does not exist; give a .tslog file or a directory\n"


class TestCommand:
    def test_installed(self):
        """Installing the package puts the command next to the interpreter."""
        command = Path(sys.executable).with_name("trackside")
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=60)

        assert (done.returncode, done.stdout) == (0, f"trackside {__version__}\n")

    @pytest.mark.parametrize("name", ["tail", "info", "export", "runs", "scores"])
    def test_help(self, name, capsys):
        """Each command has a help text."""
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])

        assert caught.value.code == 0
        assert f"usage: trackside {name}" in capsys.readouterr().out

    @pytest.mark.parametrize("arguments", [[], ["nonsense"], ["tail"], ["export", "x"]])
    def test_not_understood(self, arguments, capsys):
        """Arguments that cannot be parsed are exit code 2, and the usage is printed."""
        with pytest.raises(SystemExit) as caught:
            main(arguments)

        assert caught.value.code == 2
        assert "usage: trackside" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [(["repot", "runs"], "report"), (["tail", "runs", "--folow"], "--follow"), (["tail", "--jsno", "x"], "--json")],
    )
    def test_mistyped(self, arguments, meant, capsys):
        """A misspelt command or option is answered with the right one."""
        with pytest.raises(SystemExit):
            main(arguments)

        assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")

    @pytest.mark.parametrize(
        "arguments",
        [["report", "runs", "--htm1"], ["report", "runs", "extra", "--no-such"], ["--no-such", "report", "runs"]],
    )
    def test_usage_of_the_command(self, arguments, capsys):
        """An option that a command does not have is answered with the options that it has."""
        with pytest.raises(SystemExit) as caught:
            main(arguments)

        shown = capsys.readouterr().err
        assert caught.value.code == 2
        assert shown.startswith("usage: trackside report ")
        assert "--html" in shown

    @pytest.mark.parametrize("value", ["-1", "0", "nan", "inf", "1e30", "soon"])
    @pytest.mark.parametrize(
        "arguments",
        [
            ["ctl", "ipc:///x", "status", "--timeout"],
            ["ctl", "ipc:///x", "pause", "--for"],
            ["collect", "--bind", "ipc:///x", "--silent-after"],
            ["collect", "--bind", "ipc:///x", "--quota"],
        ],
    )
    def test_no_positive_number(self, arguments, value, capsys):
        """A time or a rate that is not a finite number above zero is refused by its option's name."""
        with pytest.raises(SystemExit) as caught:
            main([*arguments, value])

        assert caught.value.code == 2
        assert f"argument {arguments[-1]}: {value!r} is no number above 0" in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["--workers", "--replicas"])
    def test_no_count(self, option, capsys):
        """A number of processes or of nodes is at least one."""
        with pytest.raises(SystemExit) as caught:
            main(["collect", "nats://127.0.0.1:1/x", option, "0"])

        assert caught.value.code == 2
        assert f"argument {option}: '0' is no whole number from 1" in capsys.readouterr().err

    @pytest.mark.parametrize("option", ["--workers", "--replicas"])
    def test_count_without_a_stream(self, option, command):
        """Processes and nodes of a stream are refused without one."""
        shown = command("collect", "--bind", "ipc:///x", option, "2")

        assert shown.code == 2
        assert f"{option}: got 2" in shown.err
        assert "give nats://HOST:PORT/STREAM" in shown.err

    @pytest.mark.parametrize(
        "arguments", [["collect", "--bind", "ipc:///x", "--log"], ["run", "--log"], ["keys", "new"]]
    )
    @pytest.mark.parametrize("below", ["", "/below"])
    def test_file_for_directory(self, arguments, below, tmp_path, capsys):
        """A file, or something below one, is refused where a directory is to be made or filled."""
        (tmp_path / "file").touch()
        with pytest.raises(SystemExit) as caught:
            main([*arguments, f"{tmp_path}/file{below}"])

        assert caught.value.code == 2
        assert f"'{tmp_path}/file' is no directory; give another" in capsys.readouterr().err

    def test_names_the_file(self, command, monkeypatch, tmp_path):
        """An error of the system is said with the file that it is about."""
        monkeypatch.setattr("trackside.cli._keys.new_keys", lambda *_: (tmp_path / "missing" / "one").touch())
        monkeypatch.setattr("trackside.cli._info.run", lambda _: (tmp_path / "missing").read_text())

        assert command("keys", "new", tmp_path).err == (
            f"trackside keys: {tmp_path}: cannot be written: No such file or directory; give another DIR\n"
        )
        assert command("info", tmp_path).err == f"trackside info: {tmp_path}/missing: No such file or directory\n"

    def test_as_a_module(self):
        """``python -m trackside`` is the command too."""
        done = subprocess.run(
            [sys.executable, "-m", "trackside", "--version"], capture_output=True, text=True, check=False, timeout=60
        )

        assert (done.returncode, done.stdout) == (0, f"trackside {__version__}\n")

    def test_nothing_meant(self, capsys):
        """A word that resembles no command is answered without a guess."""
        with pytest.raises(SystemExit):
            main(["nonsense"])

        assert "did you mean" not in capsys.readouterr().err

    def test_examples(self, capsys):
        """Each command's help ends with an example that the parser understands."""
        parser = build_parser()
        (commands,) = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
        for name, command in commands.items():
            words = shlex.split(command.epilog.removeprefix("example:"))
            assert words[:2] == ["trackside", name]
            assert parser.parse_args(words[1:]).command == name


class TestCompletion:
    @pytest.mark.parametrize(
        ("typed", "completed"), [("re", ["report"]), ("report --h", ["--help", "--html"]), ("keys n", ["new"])]
    )
    def test_bash(self, typed, completed, capsys):
        """A shell that has loaded the script completes commands, and the options of each."""
        with pytest.raises(SystemExit) as caught:
            main(["--print-completion", "bash"])
        assert caught.value.code == 0

        script = capsys.readouterr().out
        words = ["trackside", *typed.split()]
        asked = f"""
            COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
            _shtab_trackside; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "-c", script + asked], capture_output=True, text=True, check=True, timeout=60)
        assert sorted(done.stdout.split()) == completed

    @pytest.mark.parametrize("typed", ["report", "compare", "compare runs", "attach", "ctl", "top", "trace runs -o"])
    def test_paths(self, typed, tmp_path, capsys):
        """Paths are completed wherever a command takes one."""
        pytest.importorskip("shtab", reason="shtab is not installed in this environment")
        (tmp_path / "runs").mkdir()
        with pytest.raises(SystemExit):
            main(["--print-completion", "bash"])
        words = ["trackside", *typed.split(), "ru"]
        asked = f"""
            COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}
            _shtab_trackside; printf '%s\n' "${{COMPREPLY[@]}}"
        """
        line = ["bash", "-c", capsys.readouterr().out + asked]
        done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)
        assert done.stdout.split() == ["runs"]

    def test_fish(self, capsys):
        """There is a script for fish too."""
        shtab = pytest.importorskip("shtab", reason="shtab is not installed in this environment")
        if "fish" not in shtab.SUPPORTED_SHELLS:
            pytest.skip("this release of shtab does not complete in fish")
        with pytest.raises(SystemExit):
            main(["--print-completion", "fish"])
        assert "complete -c trackside" in capsys.readouterr().out

    def test_older_library(self, command, monkeypatch):
        """A shell that only a later release of the library completes is refused with a line."""
        shtab = pytest.importorskip("shtab", reason="shtab is not installed in this environment")
        monkeypatch.setattr(shtab, "SUPPORTED_SHELLS", ["bash"])
        outcome = command("--print-completion", "fish")
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "pip install --upgrade shtab" in outcome.err

    def test_without_the_library(self, command, monkeypatch):
        """If the extra is missing, one line names the command that installs it."""
        monkeypatch.delitem(sys.modules, "trackside.cli.completion", raising=False)
        monkeypatch.setitem(sys.modules, "shtab", None)
        outcome = command("--print-completion", "bash")

        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert outcome.err.startswith("trackside: --print-completion needs an extra")
        assert "pip install 'trackside[completion]'" in outcome.err


class TestInterrupts:
    @pytest.mark.parametrize("module", ["trackside", "trackside.bus", "trackside.cli", "trackside.cli._top"])
    def test_while_it_loads(self, module):
        """An interrupt before the command is loaded ends the process silently, by the signal."""
        done = interrupted(f"""
            class Interrupter:
                def find_spec(self, name, path=None, target=None):
                    if name == {module!r}:
                        os.kill(os.getpid(), signal.SIGINT)

            sys.meta_path.insert(0, Interrupter())
        """)

        assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")

    def test_while_it_runs(self):
        """An interrupt of a command that runs is exit code 130, when it has cleaned up."""
        done = interrupted("""
            import trackside.cli._info as info

            def run(options):
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                finally:
                    print("cleaned up")

            info.run = run
        """)

        assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "")

    def test_after_it_ran(self):
        """An interrupt while the interpreter ends shows nothing either."""
        done = interrupted("""
            import atexit

            atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
        """)

        assert (done.returncode, done.stderr) == (-signal.SIGINT, NOT_THERE)

    def test_loads_nothing_first(self):
        """Until it has seen to interrupts, the command loads no other module than these."""
        place = Path(importlib.util.find_spec("_trackside_command").origin).parent
        lines = f"""
            import sys

            sys.path.insert(0, {str(place)!r})
            before = set(sys.modules)
            import _trackside_command

            print(*sorted(set(sys.modules) - before))
        """
        command = [sys.executable, "-I", "-S", "-c", textwrap.dedent(lines)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)

        assert set(done.stdout.split()) <= {"__future__", "_signal", "_trackside_command"}

    def test_deaf(self):
        """A process that was started to ignore interrupts ignores them while it loads and when it runs."""
        done = interrupted("""
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.kill(os.getpid(), signal.SIGINT)
            import atexit

            atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
        """)

        assert (done.returncode, done.stderr) == (2, NOT_THERE)


def interrupted(program):
    """Run ``trackside info`` on a path that is not there, after *program*, which interrupts it."""
    # The tests may have been started in the background, where a shell lets processes ignore interrupts.
    before = "import os, signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    after = "\nfrom _trackside_command import main\nsys.exit(main())"
    code = before + textwrap.dedent(program) + after
    command = [sys.executable, "-c", code, "info", f"{os.devnull}/runs"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


class TestStreams:
    def test_reader_that_has_enough(self, start, tmp_path, write_log):
        """A pipe that its reader closes early is no error."""
        write_log(tmp_path, steps=3000, texts=["x" * 100] * 3000)
        child = start("tail", tmp_path)
        child.stdout.readline()
        child.stdout.close()
        child.stdout = None
        _, err = child.communicate(timeout=60)

        assert (child.returncode, err) == (0, "")

    @pytest.mark.parametrize(
        "command",
        [["tail"], ["info"], ["runs"], ["report"], ["report", "--json"], ["goodput"], ["top", "--once"]],
        ids=" ".join,
    )
    def test_reader_that_is_gone(self, start, tmp_path, write_log, command):
        """Nor is one whose reader had gone before there was anything to read."""
        write_log(tmp_path, steps=1)
        reader, writer = os.pipe()
        os.close(reader)
        child = start(*command, tmp_path, stdout=writer)
        os.close(writer)
        _, err = child.communicate(timeout=60)

        assert (child.returncode, err) == (0, "")

    @pytest.mark.parametrize("command", [["tail"], ["info"], ["runs"], ["export", "--jsonl", "-"]])
    def test_full_disk(self, start, tmp_path, write_log, command):
        """Output that cannot be written is exit code 2 and one line."""
        write_log(tmp_path)
        with open("/dev/full", "w") as full:  # noqa: PTH123
            child = start(*command, tmp_path, stdout=full)
            _, err = child.communicate(timeout=60)

        assert (child.returncode, err) == (2, f"trackside {command[0]}: No space left on device\n")

    @pytest.mark.parametrize("arguments", [["--help"], ["tail", "--help"], ["--version"]])
    @pytest.mark.parametrize("unbuffered", ["", "1"])
    def test_help_to_full_disk(self, start, arguments, unbuffered):
        """Help that cannot be written is exit code 2 and one line, too."""
        with open("/dev/full", "w") as full:  # noqa: PTH123
            child = start(*arguments, stdout=full, env={**os.environ, "PYTHONUNBUFFERED": unbuffered})
            _, err = child.communicate(timeout=60)

        assert (child.returncode, err) == (2, "trackside: No space left on device\n")

    @pytest.mark.parametrize("command", ["report", "tail", "runs"])
    def test_closed(self, tmp_path, write_log, command):
        """With stdout and stderr closed, a command does its work."""
        write_log(tmp_path)
        line = f"exec {shlex.join([sys.executable, '-m', 'trackside', command, str(tmp_path)])} >&- 2>&-"
        assert subprocess.run(line, shell=True, check=False, timeout=60).returncode == 0

    def test_terminal_of_few_letters(self, start, tmp_path, write_log):
        """Letters that the terminal does not have are shown as escapes."""
        write_log(tmp_path, steps=1, texts=["loß"])
        child = start("tail", tmp_path, "-t", "test.*", env={**os.environ, "PYTHONIOENCODING": "ascii"})
        out, err = child.communicate(timeout=60)

        assert (child.returncode, err) == (0, "")
        assert r"text=lo\xdf" in out

    @pytest.mark.parametrize("locale", [{"LANG": "C"}, {"LANG": "C.UTF-8", "LC_ALL": "POSIX"}])
    def test_locale_of_ascii(self, start, tmp_path, write_log, *, locale):
        """A terminal whose locale is C gets ASCII alone, though Python itself takes that locale for UTF-8."""
        write_log(tmp_path)
        chosen = {"PYTHONIOENCODING", "PYTHONUTF8", "LC_ALL", "LC_CTYPE"}
        master, slave = os.openpty()
        env = {name: value for name, value in os.environ.items() if name not in chosen}
        child = start("report", tmp_path, stdout=slave, env={**env, **locale})
        os.close(slave)
        written = b""
        with contextlib.suppress(OSError):  # the end of a terminal
            while more := os.read(master, 1 << 16):
                written += more
        os.close(master)

        assert child.wait(60) == 0
        assert b"Where the time went" in written
        assert written.isascii()
        assert b"\\u" not in written

    def test_ellipsis_in_ascii(self, start, tmp_path, write_log):
        """Signs of trackside's own become similar ones of ASCII, of the same width."""
        write_log(tmp_path, steps=1, texts=["x" * 100])
        ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
        child = start("tail", tmp_path, "-t", "test.*", env=ascii_only)
        (line,) = child.communicate(timeout=60)[0].splitlines()

        assert (len(line), line[-2:]) == (80, "x.")
