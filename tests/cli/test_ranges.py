from __future__ import annotations

import pytest

from trackside.cli._ranges import ranges

pytestmark = pytest.mark.once


class TestRanges:
    @pytest.mark.parametrize(
        ("numbers", "text"),
        [([], ""), ([3], "3"), ([0, 1, 2], "0-2"), ([7, 0, 1, 7, 3], "0-1, 3, 7")],
    )
    def test_all(self, numbers, text):
        """Numbers come in order, each once, neighbours together."""
        assert ranges(numbers) == text

    @pytest.mark.parametrize(("most", "text"), [(1, "0-1 …"), (2, "0-1, 5")])
    def test_most(self, most, text):
        """Of more ranges than asked for an ellipsis tells."""
        assert ranges([0, 1, 5], most=most) == text
