"""The webhook relay: facts as HTTP requests, for tools that do not speak NATS."""

from trainmover.relay.policy import Deliver, GiveUp, Retry, decide
from trainmover.relay.selection import Selection
from trainmover.relay.service import Relay
from trainmover.relay.webhook import Request, Secret, request_for

__all__ = [
    "Deliver",
    "GiveUp",
    "Relay",
    "Request",
    "Retry",
    "Secret",
    "Selection",
    "decide",
    "request_for",
]
