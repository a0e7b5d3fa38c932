"""Commands about what outlives a job: the bus, detectors, contexts."""
