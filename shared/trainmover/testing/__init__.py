"""What authors of detectors, services and tools need to test them."""

from trainmover.testing.bus import BusBench, collect, memory_bench, nats_bench, running_server

__all__ = ["BusBench", "collect", "memory_bench", "nats_bench", "running_server"]
