"""
Log in children of multiprocessing: ``children.py START_METHOD KIND DIRECTORY``.

Nobody calls flush() or close(): the children just end. The functions they run come from a module that imports trackside
at its top, so the children import it while they are unpickled, unless they import it late.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor


def work_late(directory, subscribes):
    """Be the child, and import trackside only now."""
    import frames_to_files

    frames_to_files.work(directory, subscribes)


def main(method, kind, directory):
    context = multiprocessing.get_context(method)
    if kind == "imported late":
        target, subscribes = work_late, True
    else:
        import frames_to_files

        frames_to_files.trackside.subscribe(frames_to_files.ToFile(directory))
        frames_to_files.trackside.log(frames_to_files.Ticked(number=-1))
        target = {"exits": frames_to_files.work_and_exit, "fails": frames_to_files.work_and_fail}.get(
            kind, frames_to_files.work
        )
        subscribes = method != "fork"
    if kind == "pool":
        with context.Pool(2) as pool:
            pool.starmap(target, [(directory, subscribes)] * 2)
            pool.close()
            pool.join()
    elif kind == "executor":
        with ProcessPoolExecutor(2, mp_context=context) as pool:
            list(pool.map(target, [directory] * 2, [subscribes] * 2))
    else:
        children = [context.Process(target=target, args=(directory, subscribes)) for _ in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
