"""
Importing starts no thread or process and loads no heavy module.

Each fact is read in a child process, from the interpreter's own audit events, which see every way to open
a file or a socket and to start a thread or a process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "trackside"

WATCH = """
    import json, os, sys, threading

    STARTED = ("_thread.start_new_thread", "_thread.start_joinable_thread", "os.fork", "os.forkpty",
        "os.posix_spawn", "os.exec", "os.system", "subprocess.Popen", "signal.signal")
    CHANGED = ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate", "os.putenv")
    seen = []

    def watch(name, arguments):
        if name == "open":
            path, mode, flags = arguments
            if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC):
                seen.append(f"opened {path!r} to write")
        elif name.startswith("socket.") or name in STARTED or name in CHANGED:
            seen.append(f"{name} {arguments!r}")

    def descriptors():
        return sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []

    if sys.version_info < (3, 12):  # which have no audit event for it
        import _thread

        start = _thread.start_new_thread

        def start_seen(*arguments):
            seen.append(f"_thread.start_new_thread {arguments!r}")
            return start(*arguments)

        _thread.start_new_thread = threading._start_new_thread = start_seen

    loaded = set(sys.modules)
    sys.addaudithook(watch)
    before = descriptors()
"""
REPORT = """
    print(json.dumps({
        "modules": sorted(set(sys.modules) - loaded),
        "threads": threading.active_count(),
        "descriptors": [before, descriptors()],
        "seen": seen,
    }))
"""


def run(statements):
    """Run *statements* in a fresh interpreter under watch and return its audit events."""
    source = "\n".join([textwrap.dedent(WATCH), statements, textwrap.dedent(REPORT)])
    command = [sys.executable, "-B", "-X", "faulthandler", "-c", source]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def imported():
    """Watch ``import trackside``."""
    return run("import trackside")


class TestImportTrackside:
    # Logging an event needs attrs, msgpack and the modules that those and logging load; of the other large ones, none.
    @pytest.mark.parametrize(
        "library",
        """
        torch zmq numpy cattrs typing_extensions asyncio multiprocessing socket ssl hashlib _hashlib hmac
        secrets random tempfile ctypes statistics fractions decimal base64 tomllib importlib.metadata
        trackside.cli trackside.report trackside.compat trackside.job trackside.handlers trackside.instruments
        trackside.events.goodput trackside.events.metrics trackside.events.remote trackside.events.sections
        trackside.events.training trackside.events.training trackside.rules trackside.wire._decoder pathlib
        """.split(),
    )
    def test_does_not_load(self, imported, library):
        """No heavy module is loaded before its first use."""
        assert library not in imported["modules"]

    @pytest.mark.parametrize(
        ("name", "module"),
        [
            ("start", "trackside.job"),
            ("replay", "trackside.handlers.eventlog"),
            ("attach", "trackside.handlers.zeromq"),
            ("span", "trackside.instruments"),
            ("events.GoodputUpdated", "trackside.events.goodput"),
        ],
    )
    def test_loads_later(self, name, module):
        """Modules that a job or a reader needs once are loaded at their first use, and kept from then on."""
        where, _, last = f"trackside.{name}".rpartition(".")
        watched = run(f"import trackside; assert trackside.{name} is vars({where})['{last}']")
        assert module in watched["modules"]

    def test_loads_all(self):
        """A job loads every name, and the root is from then on a module without a function for missing names."""
        run("""
import trackside
from trackside._later import load_all
load_all("trackside")
assert {"attach", "instrument", "span"} <= vars(trackside).keys() and "__getattr__" not in vars(trackside)
try:
    trackside.unheard_of
except AttributeError as error:
    assert str(error) == "module 'trackside' has no attribute 'unheard_of'"
else:
    raise AssertionError
""")

    def test_loads_what_it_can(self):
        """A name whose module cannot be imported stays for later, and says so when it is used."""
        run("""
import sys, trackside
from trackside._later import load_all
sys.modules["trackside.handlers.zeromq"] = None
load_all("trackside")
try:
    trackside.attach
except ImportError as error:
    assert "trackside.handlers.zeromq" in str(error)
else:
    raise AssertionError
""")

    def test_names_on_the_wire(self):
        """An event that was not loaded yet is found by its wire name, and listed among all."""
        run("""
from trackside import events
assert events.lookup("trackside.goodput.updated").__qualname__ == "GoodputUpdated"
assert events.lookup("trackside.goodput.unheard_of") is None
""")
        run("from trackside import events; assert 'trackside.rank.silent' in events.declared()")

    def test_taken_names(self):
        """The name of an event that was not loaded yet is taken."""
        run("""
from trackside import events
try:
    events.event("trackside.goodput.updated")(type("Mine", (events.Event,), {}))
except events.DuplicateEventError:
    pass
else:
    raise SystemExit("the name was free")
""")

    def test_loads_itself(self, imported):
        """The imported module was trackside."""
        assert "trackside.events" in imported["modules"]

    def test_starts_nothing(self, imported):
        """No thread, process or signal handler, no file opened to write, no socket."""
        assert imported["seen"] == []

    def test_one_thread(self, imported):
        """The main thread is alone."""
        assert imported["threads"] == 1

    def test_leaves_nothing_open(self, imported):
        """The same descriptors are open as before."""
        before, after = imported["descriptors"]
        assert after == before


class TestImportEverything:
    def test_starts_nothing(self):
        """No module of the package starts anything when it is imported, including the commands."""
        modules = sorted(
            ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
            for path in PACKAGE.rglob("*.py")
            if path.name != "__main__.py"
        )
        # The third-party libraries first: their own actions at import are not trackside's.
        statements = f"""
import importlib
for library in ("attrs", "cattrs", "cattrs.preconf.msgpack", "msgpack", "zmq", "torch", "requests", "urllib3"):
    try:
        importlib.import_module(library)
    except ImportError:
        pass
seen.clear()
before = descriptors()
for module in {modules}:
    try:
        importlib.import_module(module)
    except Exception as error:  # a sink says in an error of ours what to install
        missing = error if isinstance(error, ImportError) else error.__context__
        if not isinstance(missing, ImportError) or (missing.name or "trackside").startswith("trackside"):
            raise
"""
        watched = run(statements)
        assert watched["seen"] == []
        assert watched["descriptors"][0] == watched["descriptors"][1]


class TestWatch:
    """The watch itself notices every kind of start."""

    @pytest.mark.parametrize(
        ("statement", "sign"),
        [
            ("open('/dev/null', 'w')", "opened '/dev/null' to write"),
            ("os.close(os.open('/dev/null', os.O_RDWR))", "opened '/dev/null' to write"),
            ("import socket; socket.socket().close()", "socket.__new__"),
            ("threading.Thread(target=int).start()", "_thread.start"),
            ("import subprocess; subprocess.run(['true'])", "subprocess.Popen"),
            ("os.waitpid(os.fork() or os._exit(0), 0)", "os.fork"),
        ],
    )
    def test_sees(self, statement, sign):
        """Every start of a thread or process and every file opened to write is noticed."""
        assert any(line.startswith(sign) for line in run(statement)["seen"])

    def test_does_not_mind_reading(self):
        """Opening a file to read is no start."""
        assert run("open('/dev/null').close()")["seen"] == []

    def test_sees_an_open_descriptor(self):
        """A descriptor that stays open is noticed."""
        before, after = run("kept = open('/dev/null')")["descriptors"]
        assert len(after) == len(before) + 1
