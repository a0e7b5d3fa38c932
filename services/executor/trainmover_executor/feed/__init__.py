"""Where in the data a rank is, and how another process of the same rank gets to the same place.

Read in this order: ``feed`` (passes over the data, positions), ``source`` (what it wants of a way
to read a loader), then the ways: ``map_style`` with ``indices`` (the sampler is advanced, not the
data), ``sequence`` (by number), ``stateful`` (by the loader's own state), ``drawn`` (by drawing and
dropping). What the program draws by itself is in ``beside``. Random numbers of data: ``owned``
(generator objects), ``stream`` (the process-wide generators), ``workers`` (those of workers).
"""

from trainmover_executor.feed.feed import Feed

__all__ = ["Feed"]
