"""The detector service: turns collective timing and liveness evidence into incidents."""
