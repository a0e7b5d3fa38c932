"""TrainMover's shared contract: topology, events, bus, protocol and the detector SDK.

This package knows nothing of torch and of no service; every service builds on it.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
