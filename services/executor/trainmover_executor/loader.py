"""See ``trainmover_executor.feed``."""

from trainmover_executor.feed import Feed

__all__ = ["Feed"]
