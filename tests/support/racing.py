"""Work on many threads at once, which switch as often as the interpreter can."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def in_threads(count: int, work: Callable[[int], T]) -> list[T]:
    """Call *work* with each index below *count*, on a thread of its own; return the results, in any order."""
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    start = threading.Barrier(count)
    results: list[T] = []
    errors: list[BaseException] = []

    def run(index: int) -> None:
        start.wait()
        try:
            results.append(work(index))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(before_s)
    assert errors == []
    return results
