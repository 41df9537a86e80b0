"""Real text that is on every machine: the source of Python's own standard library."""

from __future__ import annotations

import sysconfig
import time
from pathlib import Path

import attrs
import torch
from torch import Tensor
from torch.utils.data import Dataset, get_worker_info

import trackside
from charlm.events import BatchDrawn

# One class for the newline and each printable ASCII character, and one for everything else.
ALPHABET = "\n" + "".join(map(chr, range(32, 127))) + "\N{WHITE SQUARE}"
VOCABULARY = len(ALPHABET)
_OTHER = VOCABULARY - 1
_CLASS_OF_BYTE = bytes(ALPHABET.index(chr(byte)) if chr(byte) in ALPHABET else _OTHER for byte in range(256))


def encode(text: bytes) -> Tensor:
    """Turn text into character classes."""
    return torch.frombuffer(bytearray(text.translate(_CLASS_OF_BYTE)), dtype=torch.uint8)


def decode(classes: Tensor) -> str:
    """Turn character classes back into text."""
    return "".join(ALPHABET[index] for index in classes.tolist())


@attrs.frozen
class Corpus:
    """The text for training and the text for validation, as character classes."""

    training: Tensor
    validation: Tensor
    files: int


def load_corpus(limit_bytes: int = 4_000_000) -> Corpus:
    """
    Read the standard library's top-level modules, in the order of their names.

    Every twentieth one is kept back for validation.

    Args:
        limit_bytes: How much text to read at most.
    """
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    files = total = 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_bytes()
        total += len(text)
        if total > limit_bytes:
            break
        files += 1
        parts[files % 20 == 0].append(text)
    training, validation = (encode(b"\n\n".join(part)) for part in parts)
    return Corpus(training=training, validation=validation, files=files)


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """
    Item *n* is the batch of step *n*: random windows of a text, the same ones whenever that step is run.

    A job that goes on from step 300 therefore sees the same batches as the interrupted one would have.
    """

    def __init__(self, text: Tensor, *, batch_size: int, context: int, seed: int) -> None:
        self._text = text
        self._shape = (batch_size, 1)
        self._window = torch.arange(context + 1)
        self._seed = seed

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        began_ns = time.perf_counter_ns()
        random = torch.Generator().manual_seed(1_000_000 * self._seed + step)
        starts = torch.randint(len(self._text) - len(self._window), self._shape, generator=random)
        windows = self._text[starts + self._window].long()
        worker = get_worker_info()
        if worker is not None:  # a DataLoader's process: it has a stream of events of its own
            duration_ns = time.perf_counter_ns() - began_ns
            trackside.log(BatchDrawn(step=step, worker=worker.id, characters=windows.numel(), duration_ns=duration_ns))
        return windows[:, :-1], windows[:, 1:]
