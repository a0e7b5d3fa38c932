"""A job as its facts tell it: machines, membership, migrations and incidents, folded from events.

Pure: feed it envelopes in stream order. The CLI's tables, the demo and the report are views of it,
and it works with the planner dead, since facts outlive who stated them.
"""

from trainmover_console.view.entries import IncidentView, MachineView, MigrationView
from trainmover_console.view.job import JobView, trace_id
from trainmover_console.view.standbys import NotReady

__all__ = ["IncidentView", "JobView", "MachineView", "MigrationView", "NotReady", "trace_id"]
