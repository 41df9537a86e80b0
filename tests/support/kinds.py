"""Event types that tests tell apart: by the type they derive from, or by their priority."""

from __future__ import annotations

from trackside.events import ITERATION, LIFECYCLE, PROFILE, Event, event


@event("test.animal", priority=ITERATION)
class Animal(Event):
    number: int = 0


@event("test.dog", priority=LIFECYCLE)
class Dog(Animal):
    pass


@event("test.puppy", priority=PROFILE)
class Puppy(Dog):
    pass


@event("test.stone", priority=ITERATION)
class Stone(Event):
    number: int = 0


class Prioritized(Event):
    """The types of which one is logged often, one once in a step, and one rarely."""


@event("test.often", priority=PROFILE)
class Often(Prioritized):
    value: object = 0


@event("test.once", priority=ITERATION)
class Once(Prioritized):
    value: object = 0


@event("test.rare", priority=LIFECYCLE)
class Rare(Prioritized):
    value: object = 0
