"""The parent of this process, and the variables for the processes that it starts."""

from __future__ import annotations

import json
import os

import pytest

from children import in_child
from trackside.events import Parent, Source, set_process_source
from trackside.instruments import environ_for_child, parent_from, span

TRACE = "0af7651916cd43dd8448eb211c80319c"


class TestParentFrom:
    def test_ours(self):
        """Trackside's variable names source and span."""
        assert parent_from({"TRACKSIDE_PARENT": "00c0ffee00c0ffee:17"}) == Parent("00c0ffee00c0ffee", 17)

    def test_w3c(self):
        """The W3C's names trace and span."""
        found = parent_from({"TRACEPARENT": f"00-{TRACE}-b7ad6b7169203331-01"})
        assert found == Parent(TRACE, 0xB7AD6B7169203331)

    def test_ours_first(self):
        """If both are set, trackside's is used."""
        environ = {"TRACKSIDE_PARENT": "00c0ffee00c0ffee:17", "TRACEPARENT": f"00-{TRACE}-b7ad6b7169203331-01"}
        assert parent_from(environ) == Parent("00c0ffee00c0ffee", 17)

    def test_w3c_of_ours(self):
        """A trace id made of a trackside source id is that source."""
        environ = {"TRACEPARENT": f"00-00c0ffee00c0ffee{'0' * 16}-0000000000000011-01"}
        assert parent_from(environ) == Parent("00c0ffee00c0ffee", 17)

    def test_later_version(self):
        """Later versions of the W3C's may have further fields."""
        found = parent_from({"TRACEPARENT": f"cc-{TRACE}-b7ad6b7169203331-01-what-else"})
        assert found == Parent(TRACE, 0xB7AD6B7169203331)

    @pytest.mark.parametrize(
        "environ",
        [
            {},
            {"TRACKSIDE_PARENT": ""},
            {"TRACKSIDE_PARENT": "17"},
            {"TRACKSIDE_PARENT": "a b:17"},
            {"TRACKSIDE_PARENT": "00c0ffee00c0ffee:-1"},
            {"TRACKSIDE_PARENT": "x" * 1_000_000},
            {"TRACEPARENT": "00"},
            {"TRACEPARENT": f"00-{'0' * 32}-b7ad6b7169203331-01"},
            {"TRACEPARENT": f"00-{TRACE}-{'0' * 16}-01"},
            {"TRACEPARENT": f"00-{TRACE.upper()}-b7ad6b7169203331-01"},
        ],
    )
    def test_nobody(self, environ):
        """A missing or malformed variable is ignored."""
        assert parent_from(environ) is None


class TestEnvironForChild:
    def test_there_and_back(self, captured):
        """A child gets the innermost open span, by either variable."""
        set_process_source(Source(id="00c0ffee00c0ffee", run_id="r"))
        with span("spawn") as around:
            recorded = environ_for_child()
        assert parent_from(recorded) == Parent("00c0ffee00c0ffee", around.id)
        assert parent_from({"TRACEPARENT": recorded["TRACEPARENT"]}) == Parent("00c0ffee00c0ffee", around.id)

    def test_no_span(self):
        """Without an open span the process itself is the parent; the W3C's variable cannot express that."""
        set_process_source(Source(id="00c0ffee00c0ffee", run_id="r"))
        assert environ_for_child() == {"TRACKSIDE_PARENT": "00c0ffee00c0ffee:0"}

    def test_trace_goes_on(self, captured):
        """
        A process that was started in a trace passes that on; the trace has other processes, so span ids contain its own
        id.
        """
        set_process_source(Source(id="00c0ffee00c0ffee", run_id="r", parent=Parent(TRACE, 5)))
        with span("spawn") as around:
            number = around.id ^ 0x00C0FFEE00C0FFEE
            assert environ_for_child()["TRACEPARENT"] == f"00-{TRACE}-{number:016x}-01"

    def test_odd_source(self, captured):
        """A source whose id makes no trace id has trackside's variable alone."""
        set_process_source(Source(id="my-source", run_id="r"))
        with span("spawn"):
            assert set(environ_for_child()) == {"TRACKSIDE_PARENT"}


def run(script, **environ):
    """Run *script* in a fresh interpreter and return what it printed, from JSON."""
    return json.loads(in_child(script, **environ)[0])


class TestProcesses:
    def test_subprocess(self):
        """A process whose environment names its parent has it in its source."""
        script = """
            import json
            from trackside.job import JobConfig
            parent = JobConfig(application_name="child").source_fields()["parent"]
            print(json.dumps([parent.source_id, parent.span_id]))
        """
        assert run(script, TRACKSIDE_PARENT="00c0ffee00c0ffee:17") == ["00c0ffee00c0ffee", 17]

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
    def test_fork(self):
        """
        A forked child has no open spans: its own have no parent span in its own process, which names the span around
        the fork as its parent; those around the fork end once, in the parent.
        """
        script = """
            import json, os, sys
            from trackside.bus import default_bus
            from trackside.events import SpanEnded, process_source
            from trackside.instruments import open_spans, span
            found = []
            default_bus.subscribe(found.append, to=SpanEnded)
            read, write = os.pipe()
            parent = process_source()
            pid = 0
            with span("around") as around:
                pid = os.fork()
                if not pid:
                    open_at_first = open_spans()
                    with span("in child"):
                        pass
            if not pid:
                seen = [[event.name, event.parent_span_id] for event in found]
                source = process_source()
                seen = [seen, open_at_first, source.parent.span_id == around.id, source.parent.source_id == parent.id]
                os.write(write, json.dumps(seen).encode())
                os._exit(0)
            os.waitpid(pid, 0)
            print(json.dumps([json.loads(os.read(read, 4096)), [event.name for event in found]]))
        """
        in_child, in_parent = run(script)
        assert in_child == [[["in child", 0]], {}, True, True]
        assert in_parent == ["around"]
