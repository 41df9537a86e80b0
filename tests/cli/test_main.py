"""The command as a process: codes, streams, pipes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from trackside.cli import main
from trackside.cli._main import build_parser
from trackside.events import __version__


class TestCommand:
    def test_installed(self):
        """Installing the package puts the command next to the interpreter."""
        command = Path(sys.executable).with_name("trackside")
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False, timeout=60)

        assert (done.returncode, done.stdout) == (0, f"trackside {__version__}\n")

    @pytest.mark.parametrize("name", ["tail", "info", "export", "runs", "scores"])
    def test_help(self, name, capsys):
        """Each command explains itself."""
        with pytest.raises(SystemExit) as caught:
            main([name, "--help"])

        assert caught.value.code == 0
        assert f"usage: trackside {name}" in capsys.readouterr().out

    @pytest.mark.parametrize("arguments", [[], ["nonsense"], ["tail"], ["export", "x"]])
    def test_not_understood(self, arguments, capsys):
        """What cannot be understood is exit code 2, and says how it is used."""
        with pytest.raises(SystemExit) as caught:
            main(arguments)

        assert caught.value.code == 2
        assert "usage: trackside" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("arguments", "meant"),
        [(["repot", "runs"], "report"), (["tail", "runs", "--folow"], "--follow"), (["tail", "--jsno", "x"], "--json")],
    )
    def test_mistyped(self, arguments, meant, capsys):
        """A word that is nearly a command or an option is answered with what was meant."""
        with pytest.raises(SystemExit):
            main(arguments)

        assert capsys.readouterr().err.endswith(f"did you mean {meant}?\n")

    def test_nothing_meant(self, capsys):
        """A word that is like no other is answered without a guess."""
        with pytest.raises(SystemExit):
            main(["nonsense"])

        assert "did you mean" not in capsys.readouterr().err

    def test_examples(self, capsys):
        """Each command's help ends with an example that the parser understands."""
        parser = build_parser()
        (commands,) = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
        for name, command in commands.items():
            words = shlex.split(command.epilog.removeprefix("example: "))
            assert words[:2] == ["trackside", name]
            assert parser.parse_args(words[1:]).command == name


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

    def test_reader_that_is_gone(self, start, tmp_path, write_log):
        """Nor is one whose reader had gone before there was anything to read."""
        write_log(tmp_path, steps=1)
        reader, writer = os.pipe()
        os.close(reader)
        child = start("tail", tmp_path, stdout=writer)
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

    def test_terminal_of_few_letters(self, start, tmp_path, write_log):
        """Letters that the terminal does not have are shown as escapes."""
        write_log(tmp_path, steps=1, texts=["loß"])
        child = start("tail", tmp_path, "-t", "test.*", env={**os.environ, "PYTHONIOENCODING": "ascii"})
        out, err = child.communicate(timeout=60)

        assert (child.returncode, err) == (0, "")
        assert r"text=lo\xdf" in out

    def test_ellipsis_in_ascii(self, start, tmp_path, write_log):
        """Signs of trackside's own become similar ones of ASCII, of the same width."""
        write_log(tmp_path, steps=1, texts=["x" * 100])
        ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
        child = start("tail", tmp_path, "-t", "test.*", env=ascii_only)
        (line,) = child.communicate(timeout=60)[0].splitlines()

        assert (len(line), line[-2:]) == (80, "x.")
