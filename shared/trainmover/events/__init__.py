"""The event contract: envelope, models by entity, and the catalogue that ties them together."""

from trainmover.events.catalog import CATALOG, EventType, lookup, type_of
from trainmover.events.envelope import Envelope, decode, encode

__all__ = ["CATALOG", "Envelope", "EventType", "decode", "encode", "lookup", "type_of"]
