"""Choosing ranks."""

from __future__ import annotations

import pytest

from trackside.events import ConfigError
from trackside.job import is_among


class TestIsAmong:
    @pytest.mark.parametrize(
        ("ranks", "chosen"),
        [
            ("all", list(range(20))),
            ("none", []),
            ("0", [0]),
            ("0,8-11", [0, 8, 9, 10, 11]),
            (" 3 , 5 ", [3, 5]),
            ("0-19/8", [0, 8, 16]),
            (4, [4]),
            ([1, 2], [1, 2]),
            ((7,), [7]),
            ({2, 3}, [2, 3]),
            (range(5, 7), [5, 6]),
            ([], []),
            (lambda rank: rank > 17, [18, 19]),
        ],
    )
    def test_chosen(self, ranks, chosen):
        """Each notation chooses the ranks that it names."""
        assert [rank for rank in range(20) if is_among(rank, ranks)] == chosen

    @pytest.mark.parametrize(
        "wrong", ["", "a", "1-", "-1", "5-3", "0-9/0", "1,,2", -1, 1.5, True, None, ["0"], "1-2-3"]
    )
    def test_wrong(self, wrong):
        """A value of any other form is refused, naming field, value and remedy."""
        with pytest.raises(ConfigError) as caught:
            is_among(0, wrong, field="disabled_ranks")
        assert (caught.value.field, caught.value.given) == ("disabled_ranks", wrong)

    def test_large(self):
        """A range of any size costs nothing."""
        assert is_among(16_383, "0-999999999")
