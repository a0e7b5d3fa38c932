"""What an operator declares about moves: one model, whether a file or a command line says it."""

from trainmover.policy.model import Decision, Policy, Rebalance, Rule
from trainmover.policy.reading import PolicyError, Problem, declared, read

__all__ = [
    "Decision",
    "Policy",
    "PolicyError",
    "Problem",
    "Rebalance",
    "Rule",
    "declared",
    "read",
]
