"""Memory for many files."""

from __future__ import annotations

import pytest

from trackside.handlers.eventlog._reader import block_bytes


class TestBlockBytes:
    @pytest.mark.parametrize("files", [1, 2, 100, 200, 4096, 8192])
    def test_sum(self, files):
        """The blocks of all files together take at most 32 MiB."""
        assert files * block_bytes(files) <= 32 << 20

    @pytest.mark.parametrize(("files", "expected"), [(0, 1 << 18), (1, 1 << 18), (256, 1 << 17), (100_000, 4096)])
    def test_bounds(self, files, expected):
        """One block is at most 256 KiB and at least 4 KiB."""
        assert block_bytes(files) == expected
