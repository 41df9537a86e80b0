"""The bounded table of a decoder keeps the newest entries, as many as there is room for."""

from __future__ import annotations

import random

from trackside.wire._decoder import Memo


def kept(memo, keys):
    return [key for key in keys if key in memo._entries]


class TestMemo:
    def test_get(self):
        """An entry that was put is found, another is not."""
        memo = Memo(10)
        memo.put("a", 1, 5)
        assert (memo.get("a"), memo.get("b")) == (1, None)

    def test_oldest(self):
        """Beyond the capacity the oldest are forgotten, and no more of them than need be."""
        memo = Memo(10)
        for key in "abc":
            memo.put(key, key, 4)
        assert kept(memo, "abc") == ["b", "c"]

    def test_used(self):
        """An entry that is used counts as new."""
        memo = Memo(10)
        memo.put("a", 1, 4)
        memo.put("b", 2, 4)
        memo.get("a")
        memo.put("c", 3, 4)
        assert kept(memo, "abc") == ["a", "c"]

    def test_again(self):
        """An entry that is put again replaces the earlier one."""
        memo = Memo(10)
        memo.put("a", 1, 8)
        memo.put("a", 2, 4)
        memo.put("b", 3, 6)
        assert (memo.get("a"), memo.get("b"), memo.weight) == (2, 3, 10)

    def test_too_heavy(self):
        """The newest is kept even if it alone exceeds the capacity: it is about to be used."""
        memo = Memo(10)
        memo.put("a", 1, 4)
        memo.put("b", 2, 100)
        assert kept(memo, "ab") == ["b"]

    def test_weight(self, seed):
        """After any operation, the weight is that of the kept entries, within the capacity."""
        rng = random.Random(seed)
        memo = Memo(100)
        for _ in range(2000):
            key = rng.randrange(40)
            if rng.random() < 0.5:
                memo.get(key)
            else:
                memo.put(key, key, rng.randrange(1, 30))
            assert memo.weight == sum(weight for _, weight in memo._entries.values()) <= 100
