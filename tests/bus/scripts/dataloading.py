"""
Log in the workers of a DataLoader: ``dataloading.py START_METHOD PERSISTENT EPOCHS FIRST DIRECTORY``.

FIRST is what is imported first, torch or trackside. Prints the main process's source.
"""

from __future__ import annotations

import json
import sys

if sys.argv[1:] and sys.argv[4] == "torch":
    pass

import trackside
from trackside.events import ITERATION, Event, event, process_source

ITEMS = 40


@event("test.dataloading.loaded", priority=ITERATION)
class Loaded(Event):
    number: int = 0
    worker: int = -1


class Numbers:
    """Forty numbers; the process that loads one logs it."""

    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        from torch.utils.data import get_worker_info

        trackside.log(Loaded(number=index, worker=get_worker_info().id))
        trackside.counter("test.loaded").add(1)
        return index


def main(method, persistent, epochs, directory):
    import torch.utils.data

    with trackside.start(directory, report=False):
        loader = torch.utils.data.DataLoader(
            Numbers(),
            batch_size=4,
            num_workers=2,
            multiprocessing_context=method,
            persistent_workers=persistent == "persistent",
        )
        for _ in range(int(epochs)):
            loaded = [int(number) for batch in loader for number in batch]
            assert loaded == list(range(ITEMS)), loaded
            trackside.log(Loaded(number=-1))
        source = process_source()
        del loader  # ends the workers that persist
    print(json.dumps({"id": source.id, "run_id": source.run_id}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[5])
