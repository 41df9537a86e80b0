"""
On every build, a new thread begins outside of every span, and a copied context keeps its span.

Each fact is checked in a child, with and without the option that lets threads inherit the context of their starter. It
is on by default where there is no interpreter lock, and Pythons before 3.14 ignore it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
    import asyncio, concurrent.futures, contextvars, json, sys, threading
    from trackside import subscribe, training_iteration
    from trackside.events import ambient

    own = contextvars.ContextVar("own", default="unset")
    own.set("set")

    def run(function, **options):
        found = []
        thread = threading.Thread(target=lambda: found.append(function()), **options)
        thread.start()
        thread.join()
        return found[0]

    found = {}
    with subscribe(lambda event: None), training_iteration(step=7):
        here = ambient.get()
        assert here[0] != 0 and here[1] == 7
        found["thread"] = run(ambient.get)
        found["own"] = run(own.get)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            found["pool"] = pool.submit(ambient.get).result()
        found["to_thread"] = asyncio.run(asyncio.to_thread(ambient.get)) == here
        context = contextvars.copy_context()
        found["handed over"] = run(lambda: context.run(ambient.get)) == here
        if sys.version_info >= (3, 14):
            found["given"] = run(ambient.get, context=contextvars.copy_context()) == here
        found["starter"] = ambient.get() == here
    found["inherits"] = bool(getattr(sys.flags, "thread_inherit_context", 0))
    print(json.dumps(found))
"""


@pytest.fixture(scope="module", params=["0", "1"], ids=["empty", "inherited"])
def found(request):
    """Give the results of a child whose Python lets threads begin with an empty or with an inherited context."""
    command = [sys.executable, "-X", f"thread_inherit_context={request.param}", "-c", textwrap.dedent(SCRIPT)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=100).stdout)
    assert found["inherits"] is (request.param == "1" and sys.version_info >= (3, 14))
    return found


def test_outside(found):
    """A thread that is started inside an iteration has neither its span nor its step."""
    assert found["thread"] == [0, -1]


def test_pool(found):
    """A pool's thread, which outlives the iteration in which it was started, begins outside of it too."""
    assert found["pool"] == [0, -1]


def test_handed_over(found):
    """A context that is passed on explicitly keeps its span."""
    assert (found["to_thread"], found["handed over"], found.get("given", True)) == (True, True, True)


def test_starter(found):
    """Starting threads leaves the span of the starter as it is."""
    assert found["starter"] is True


def test_other_variables(found):
    """Context variables of the program are inherited as this Python does it."""
    assert found["own"] == ("set" if found["inherits"] else "unset")
