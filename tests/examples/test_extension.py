"""The example in C, built as its page says, and the functions of the header that it calls."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest

import trackside
from implementations import needs_core
from trackside.events import ExceptionRaised, ProfileSpanEnded, SpanEnded, SpanStarted
from trackside.instruments import Span

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "extension" / "digest.c"
HEADER = Path(trackside.get_include(), "trackside.h")
INCLUDES = (f"-I{sysconfig.get_path('include')}", f"-I{HEADER.parent}")
FNV_1A = {b"a": 0xAF63DC4C8601EC8C, b"foobar": 0x85944171F73967E8}
"""From the authors' list of test vectors."""
CALL = """
import json, digest, trackside
print(json.dumps([digest.digest(b"a"), trackside.counter("digest.bytes").sum, trackside.implementation]))
"""
STRANGERS = """
import digest
print([digest.digest(b"a")])
"""

needs_compiler = pytest.mark.skipif(
    shutil.which("cc") is None or not Path(sysconfig.get_path("include"), "Python.h").exists(),
    reason="there is no compiler here, or no headers of this Python",
)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Give the directory in which the command of the page built the example."""
    directory = tmp_path_factory.mktemp("extension")
    shutil.copy(EXAMPLE, directory)
    (command,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "write-an-extension.md").read_text(), re.DOTALL)
    python = shlex.quote(sys.executable)
    command = command.replace("cc ", "cc -Wall -Wextra -Werror ", 1).replace("$(python ", f"$({python} ")
    subprocess.run(command, shell=True, cwd=directory, check=True, env=environ())
    return directory


@pytest.fixture
def digest(built):
    """Give the example as a module of this process."""
    spec = importlib.util.spec_from_file_location("digest", built / "digest.so")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.digest


@pytest.fixture
def ignored(monkeypatch):
    """Give the list of exceptions that reach no caller."""
    found = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: found.append(about.exc_value))
    return found


def environ(**variables):
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables}


def run(code, built, **variables):
    """Run *code* in a process of its own that has the example; return what it printed."""
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(
        command, cwd=built, env=environ(**variables), check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_compiler
class TestExample:
    @pytest.mark.parametrize("data", FNV_1A)
    def test_digest(self, digest, data):
        """The example returns its result."""
        assert digest(data) == FNV_1A[data]

    @needs_core
    def test_span(self, digest, events):
        """Its span is inside the one opened in Python, at the step of the iteration."""
        with trackside.training_iteration(7), trackside.span("outer") as outer:
            digest(b"abc")
        (ended,) = [event for event in events if isinstance(event, ProfileSpanEnded)]
        assert (ended.name, ended.step, ended.parent_span_id, ended.error) == ("digest", 7, outer.id, None)
        assert ended.duration_ns > 0

    @needs_core
    def test_counter(self, digest):
        """It adds to the counter that Python has under the name: 3 and 6 bytes."""
        counter = trackside.counter("digest.bytes")
        count, total = counter.count, counter.sum
        digest(b"abc")
        digest(b"foobar")
        assert (counter.count - count, counter.sum - total) == (2, 9)

    @needs_core
    def test_error(self, digest, events):
        """An exception raised in it reaches the caller, and is the error of its span."""
        with pytest.raises(ValueError, match="nothing to digest"):
            digest(b"")
        (ended,) = [event for event in events if isinstance(event, ProfileSpanEnded)]
        (raised,) = [event for event in events if isinstance(event, ExceptionRaised)]
        assert (ended.error["type"], ended.error["message"]) == ("ValueError", "nothing to digest")
        assert raised.span_name == "digest"

    @needs_core
    def test_threads(self, digest):
        """Eight threads at once lose nothing: each calls it a thousand times with two bytes."""
        counter = trackside.counter("digest.bytes")
        total = counter.sum
        threads = [threading.Thread(target=lambda: [digest(b"ab") for _ in range(1000)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counter.sum - total == 16_000

    def test_without_core(self, built):
        """In pure Python it goes without telemetry, and does its work."""
        assert run(CALL, built, TRACKSIDE_PURE_PYTHON="1") == [FNV_1A[b"a"], 0, "pure"]

    def test_without_trackside(self, built):
        """The same holds if trackside is not installed."""
        (built / "trackside.py").write_text("raise ImportError\n")
        try:
            assert run(STRANGERS, built, PYTHONPATH="") == [FNV_1A[b"a"]]
        finally:
            (built / "trackside.py").unlink()

    def test_of_a_later_version(self, built, tmp_path):
        """Built with a header whose functions this version lacks, it goes without telemetry."""
        text = HEADER.read_text()
        later = re.sub(r"(#define TRACKSIDE_API_VERSION) 1\b", r"\1 2", text)
        assert later != text
        (tmp_path / HEADER.name).write_text(later)
        command = ["cc", "-shared", "-fPIC", INCLUDES[0], f"-I{tmp_path}", EXAMPLE, "-o", tmp_path / "digest.so"]
        subprocess.run(command, check=True)
        assert run(CALL, tmp_path)[:2] == [FNV_1A[b"a"], 0]


@needs_compiler
class TestHeader:
    @pytest.mark.parametrize(
        "options",
        [
            pytest.param(["cc", "-xc", "-std=c11"], id="C"),
            pytest.param(["c++", "-xc++", "-std=c++11"], id="C++"),
            pytest.param(["cc", "-xc", "-std=c11", "-DPy_LIMITED_API=0x030A0000"], id="limited API"),
        ],
    )
    def test_compiles(self, options, tmp_path):
        """The header needs no other file, and causes no warning, in C, in C++ and with the limited API."""
        if shutil.which(options[0]) is None:
            pytest.skip(f"there is no {options[0]} here")
        if sysconfig.get_config_var("Py_GIL_DISABLED") and "-DPy_LIMITED_API=0x030A0000" in options:
            pytest.skip("this Python has no limited API of that version")
        source = tmp_path / "source.c"
        source.write_text("#include <trackside.h>\nint use(void) { return trackside_import(); }\n")
        warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
        includes = (f"-isystem{sysconfig.get_path('include')}", INCLUDES[1])
        subprocess.run([*options, *warnings, *includes, "-fsyntax-only", str(source)], check=True)


class Functions(ctypes.Structure):
    """The struct of the header, called with the interpreter lock held; after each call ctypes raises what is set."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("record", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_double)),
        ("open_span", ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)),
        ("close_span", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)),
    )


COUNTER, STAT, GAUGE = range(3)
PROFILE, ITERATION, LIFECYCLE = range(1, 4)


@pytest.fixture
def api():
    """Give the functions that the header finds."""
    pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return Functions.from_address(pointer(trackside._native._C_API, b"trackside._native._C_API"))


@needs_core
class TestRecord:
    def test_kinds(self, api):
        """The three kinds are the three of Python."""
        for kind in (COUNTER, STAT, GAUGE):
            assert api.record(kind, b"test.extension.%d" % kind, 2.5) == 0
            assert api.record(kind, b"test.extension.%d" % kind, 0.5) == 0
        assert trackside.counter("test.extension.0").sum == 3.0
        assert trackside.stat("test.extension.1").snapshot().count == 2
        assert trackside.gauge("test.extension.2").snapshot().last == 0.5

    def test_invalid(self, api):
        """NaN and a negative amount are invalid samples, as in Python, and no failure."""
        assert [api.record(COUNTER, b"test.extension.invalid", value) for value in (math.nan, -1.0, 1.0)] == [0, 0, 0]
        snapshot = trackside.counter("test.extension.invalid").snapshot()
        assert (snapshot.sum, snapshot.invalid) == (1.0, 2)

    @pytest.mark.parametrize("name", [b"", b"two\nlines", b"x" * 257])
    def test_impossible_name(self, api, ignored, name):
        """A name that Python refuses is not recorded, and reported once."""
        assert [api.record(STAT, name, 1.0) for _ in range(3)] == [-1, -1, -1]
        assert [type(error) for error in ignored] == [trackside.ConfigError]

    def test_another_kind(self, api, ignored):
        """A counter whose name is a stat's already is recorded beside it, as in Python."""
        trackside.stat("test.extension.stat")
        assert api.record(COUNTER, b"test.extension.stat", 2.0) == 0
        assert (trackside.counter("test.extension.stat.counter").sum, ignored) == (2.0, [])

    def test_no_text(self, api, ignored):
        """A name that is no UTF-8 is reported, no name at all is not recorded, nor is a fourth kind."""
        assert api.record(COUNTER, b"\xff", 1.0) == -1
        assert [type(error) for error in ignored] == [UnicodeDecodeError]
        assert api.record(COUNTER, None, 1.0) == -1
        assert [api.record(kind, b"test.extension.kind", 1.0) for kind in (-1, 3)] == [-1, -1]

    def test_interrupted(self, api, monkeypatch):
        """A KeyboardInterrupt during a call of the header is raised as soon as Python runs."""

        def interrupt(name):
            raise KeyboardInterrupt

        monkeypatch.setattr(trackside, "counter", interrupt)
        answers = []
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012  where in it is the interpreter's business
            answers.append(api.record(COUNTER, b"test.extension.interrupted", 1.0))
            for _ in range(1000):
                pass
        assert answers in ([-1], [])

    def test_without_lock(self, api):
        """A call without the interpreter lock does nothing."""
        record = ctypes.cast(api.record, ctypes.c_void_p).value
        open_span = ctypes.cast(api.open_span, ctypes.c_void_p).value
        record = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_double)(record)
        open_span = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)(open_span)
        assert record(COUNTER, b"test.extension.unlocked", 1.0) == -1
        assert open_span(b"test.extension.unlocked", ITERATION) is None
        assert trackside.counter("test.extension.unlocked").count == 0


@needs_core
class TestSpan:
    def test_nested(self, api, events):
        """Spans are nested in the open ones, in both languages."""
        outer = api.open_span(b"outer", ITERATION)
        with trackside.span("middle"):
            inner = api.open_span(b"inner", PROFILE)
            assert api.close_span(inner) == 0
        assert api.close_span(outer) == 0
        ended = {event.name: event for event in events if isinstance(event, SpanEnded)}
        assert list(ended) == ["inner", "middle", "outer"]
        assert ended["inner"].parent_span_id == ended["middle"].span_id
        assert ended["middle"].parent_span_id == ended["outer"].span_id

    def test_lifecycle(self, api, events):
        """A span of the highest priority is published at its start."""
        span = api.open_span(b"setup", LIFECYCLE)
        assert [event.name for event in events if isinstance(event, SpanStarted)] == ["setup"]
        api.close_span(span)

    def test_reference(self, api, events):
        """The handle is the span, and closing gives up its reference: as many are left as of a span of Python's own."""
        handle = api.open_span(b"kept", ITERATION)
        # One without attributes might be kept for the next.
        span, other = ctypes.cast(handle, ctypes.py_object).value, trackside.span("kept", number=1)
        assert isinstance(span, Span)
        assert span.is_open
        api.close_span(handle)
        with other:
            pass
        assert not span.is_open
        assert sys.getrefcount(span) == sys.getrefcount(other)

    def test_nobody_listens(self, api):
        """Without a handler a span costs nothing and closes as one."""
        assert api.close_span(api.open_span(b"unheard", PROFILE)) == 0

    def test_wrong_name(self, api, ignored):
        """A name that is no UTF-8 opens nothing, and is reported."""
        assert api.open_span(b"\xff", ITERATION) is None
        assert [type(error) for error in ignored] == [UnicodeDecodeError]
