"""The bus: facts, commands, telemetry, requests and key-value state behind one protocol."""

from trainmover.bus.protocol import Bus, Delivery, Entry, RequestHandler

__all__ = ["Bus", "Delivery", "Entry", "RequestHandler"]
