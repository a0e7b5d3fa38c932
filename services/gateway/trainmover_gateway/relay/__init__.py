"""The webhook relay: facts as HTTP requests, for tools that do not speak NATS."""

from trainmover_gateway.relay.policy import Deliver, GiveUp, Retry, decide
from trainmover_gateway.relay.selection import Selection
from trainmover_gateway.relay.service import Relay
from trainmover_gateway.relay.webhook import Request, Secret, request_for

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
