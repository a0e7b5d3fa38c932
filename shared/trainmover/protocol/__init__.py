"""The migration protocol, pure: phases, transitions, deadlines, and the planner's requests.

Read ``table`` first, then ``migration``.
"""

from trainmover.protocol.migration import Migration, standing_commands, step
from trainmover.protocol.table import OPEN, TABLE, Deadlines, Phase, Signal, mermaid

__all__ = [
    "OPEN",
    "TABLE",
    "Deadlines",
    "Migration",
    "Phase",
    "Signal",
    "mermaid",
    "standing_commands",
    "step",
]
