"""A module of a program: noise from a generator of its own, and a registry of numbers."""

import random

_rng = random.Random(7)
_calls = 0
REGISTRY = {}


def strength():
    global _calls
    _calls += 1
    return _rng.random() / (1 + _calls / 50)


def note(name, value):
    REGISTRY.setdefault(name, []).append(value)
