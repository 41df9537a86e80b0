"""
Fuzz the readers of other programs' bytes: ``python tests/fuzz/run.py [--seconds 60] [--seed N] [TARGET …]``.

Each target makes inputs from a random generator and checks the properties that hold for all of them. The first input
that breaks one is printed with the seed that repeats it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import msgpack

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / "wire"), str(TESTS / "fuzz"), str(TESTS / "support")]


import fuzzing as frames  # noqa: E402  inputs for the decoder, which its tests use too
from importers import Kineto, MlGoodput, Torchtitan  # noqa: E402
from protocol import Protocol  # noqa: E402

from trackside._implementation import native  # noqa: E402
from trackside.events import ConfigError, DecodeError, IterationEnded  # noqa: E402
from trackside.handlers.eventlog._format import decode_ending, decode_header, decode_loss  # noqa: E402
from trackside.handlers.eventlog._scanner import Damage, Scanner  # noqa: E402
from trackside.rules import rule_from_wire  # noqa: E402
from trackside.wire import FrameDecoder, RowEncoder, to_json  # noqa: E402

SLOW_S = 5.0
"""The most processor time of any input of any target, in seconds."""


class Decoder:
    """Any bytes are a frame or a DecodeError, and the events of a frame can be written again."""

    def __init__(self) -> None:
        self._corpus = frames.seeds()
        self._decoder = FrameDecoder()

    def make(self, rng: random.Random) -> bytes:
        """Return random bytes, bytes of the shape of a frame, or a damaged frame."""
        kind = rng.randrange(20)
        if kind == 0:
            return rng.randbytes(rng.randrange(100))
        return frames.composed(rng) if kind < 10 else frames.mutated(rng, self._corpus)

    def check(self, data: bytes) -> bool:
        """Return whether *data* is a frame."""
        try:
            frame = self._decoder.decode(data)
        except DecodeError:
            return False
        encoder = RowEncoder()
        for event in frame.events:
            to_json(event)
            encoder.encode(event, 0)
        return True


class CompiledDecoder:
    """Of any bytes the compiled decoder and the one in Python make the same events, or both refuse them."""

    def __init__(self) -> None:
        self._corpus = frames.seeds()
        self._compiled, self._pure = FrameDecoder(), frames.pure_decoder()

    def make(self, rng: random.Random) -> bytes:
        """Return a frame of any types, whole or damaged, or bytes of the shape of one."""
        kind = rng.randrange(20)
        if kind == 0:
            return frames.composed(rng)
        if kind < 5:
            return frames.mutated(rng, self._corpus)
        data = frames.plausible(rng)
        if kind < 12:
            return data
        self._corpus[rng.randrange(len(self._corpus))] = data
        return frames.mutated(rng, self._corpus) if kind < 19 else data[: rng.randrange(len(data))]

    def check(self, data: bytes) -> bool:
        """Return whether *data* is a frame."""
        made = frames.outcome(self._compiled, data)
        assert made == frames.outcome(self._pure, data), "the decoders differ"
        return made is not None


class LogScanner:
    """Every byte of any file is in one record or in one range of damage, and entries raise DecodeError alone."""

    def __init__(self) -> None:
        self._corpus = [(TESTS / "data" / "eventlog-v2.tslog").read_bytes()]

    def make(self, rng: random.Random) -> bytes:
        """Return a log whose bytes were changed, moved, doubled or lost."""
        return frames.mutated(rng, self._corpus)

    def check(self, data: bytes) -> bool:
        """Return whether a record was found in *data*."""
        scanner = Scanner(lambda offset, size: data[offset : offset + size], block_bytes=512)
        covered = records = 0
        for found in chain(scanner.scan(), scanner.finish()):
            if isinstance(found, Damage):
                covered += found.length_bytes
                continue
            covered += found.end - found.offset
            records += 1
            for decode in (decode_header, decode_loss, decode_ending):
                with contextlib.suppress(DecodeError):
                    decode(found.payload)
        assert covered == len(data), f"{covered} of {len(data)} bytes are accounted for"
        return records > 0


class FilterRules:
    """Any plain data is a rule that decides and crosses the wire unchanged, or is refused."""

    def make(self, rng: random.Random) -> bytes:
        """Return packed data of the shape of a rule."""
        return msgpack.packb(self._rule(rng, 0), default=str)

    def _rule(self, rng: random.Random, depth: int) -> Any:
        kind = rng.choice(
            ("every", "fraction", "at_most", "all_of", "any_of", "only_spans", "without_spans", "spans", 7)
        )
        arguments: list[Any] = [frames.anything(rng, 3) for _ in range(rng.randrange(3))]
        if kind in ("all_of", "any_of") and depth < 9:
            arguments = [[self._rule(rng, depth + 1) for _ in range(rng.randrange(3))]]
        elif kind in ("every", "fraction", "at_most") and rng.random() < 0.7:
            arguments = [rng.choice((0, 1, 2, 0.5, 1.0, 10**6, -1, True)) for _ in range(rng.randrange(1, 3))]
        return frames.anything(rng) if rng.random() < 0.1 else [kind, *arguments]

    def check(self, data: bytes) -> bool:
        """Return whether *data* is a rule."""
        plain = msgpack.unpackb(data, strict_map_key=False)
        try:
            rule = rule_from_wire(plain)
        except (ConfigError, DecodeError):
            return False
        decide = rule.start()
        for _ in range(3):
            decide(IterationEnded(duration_ns=1))
        assert rule_from_wire(rule.to_wire()) == rule
        return True


TARGETS: dict[str, Callable[[], Any]] = {
    "decoder": Decoder,
    "scanner": LogScanner,
    "rules": FilterRules,
    "ml-goodput": MlGoodput,
    "torchtitan": Torchtitan,
    "kineto": Kineto,
    "protocol": Protocol,
}
if native is not None:
    TARGETS["compiled"] = CompiledDecoder


def fuzz(name: str, seconds: float, seed: int) -> bool:
    """Run the target *name* for so many seconds of processor time; return whether everything held."""
    target, rng = TARGETS[name](), random.Random(seed)
    count = accepted = 0
    slowest_s = 0.0
    deadline_s = time.process_time() + seconds
    while time.process_time() < deadline_s:
        data = target.make(rng)
        began_s = time.process_time()
        try:
            accepted += target.check(data)
        except Exception as error:
            print(f"{name}: input {count} of --seed {seed}: {type(error).__name__}: {error}\n{data.hex()}")
            return False
        took_s = time.process_time() - began_s
        slowest_s = max(slowest_s, took_s)
        if took_s > SLOW_S:
            print(f"{name}: input {count} of --seed {seed} took {took_s:.1f} s\n{data.hex()}")
            return False
        count += 1
    print(f"{name}: {count:,} inputs, {accepted:,} accepted, slowest {slowest_s * 1000:.0f} ms (--seed {seed})")
    return True


def main() -> int:
    """Run the targets that the command line names."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().splitlines()[0])
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all unless given", metavar="TARGET")
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of each target (default: 60)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="repeats a run")
    options = parser.parse_args()
    return 0 if all(fuzz(name, options.seconds, options.seed) for name in options.targets or TARGETS) else 1


if __name__ == "__main__":
    sys.exit(main())
