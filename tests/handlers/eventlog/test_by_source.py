"""Reading logs source by source."""

from __future__ import annotations

from trackside.events import Source
from trackside.handlers.eventlog import replay


class TestBySource:
    def test_each_alone(self, record, tmp_path):
        """Each source comes with its own events in their order, whatever the others' times are."""
        record(tmp_path, Source(id="b", rank=1), [(10, "a"), (30, "c")], [(60, "f")])
        record(tmp_path, Source(id="a", rank=0), [(20, "b"), (40, "d")])
        found = [
            (source.rank, [event.text for view in frames for event in view.events])
            for source, frames in replay(tmp_path).by_source()
        ]
        assert found == [(0, ["b", "d"]), (1, ["a", "c", "f"])]

    def test_not_asked_for(self, record, tmp_path):
        """A source that is not asked for is not read, and none of its events count as missing."""
        record(tmp_path, Source(id="a"), [(10, "a")])
        (path,) = record(tmp_path, Source(id="b"), [(20, "b")])
        recorded = replay(tmp_path)
        (_, first), (_, second) = recorded.by_source()
        path.unlink()
        assert [event.text for view in first for event in view.events] == ["a"]
        assert recorded.problems == []
        assert list(second) == []
        assert len(recorded.problems) == 1

    def test_counts(self, record, tmp_path):
        """Missing events are counted as in a merged replay."""
        (path,) = record(tmp_path, Source(id="a"), [(10, "a")], [(20, "to be damaged")], [(30, "c")])
        data = bytearray(path.read_bytes())
        data[data.index(b"to be damaged")] ^= 0xFF
        path.write_bytes(data)
        merged, apart = replay(tmp_path), replay(tmp_path)
        assert len(list(merged)) == sum(len(view) for _, frames in apart.by_source() for view in frames)
        assert (apart.missing, apart.damaged_bytes) == (merged.missing, merged.damaged_bytes)
        assert apart.missing == 1
