"""A job as its facts tell it: machines, membership, migrations and incidents, folded from events.

Pure: feed it envelopes in stream order. The CLI's tables, the demo and the report are views of it,
and it works with the planner dead, since facts outlive who stated them.
"""

from trainmover.view.entries import IncidentView, MachineView, MigrationView
from trainmover.view.job import JobView, trace_id
from trainmover.view.standbys import NotReady

__all__ = ["IncidentView", "JobView", "MachineView", "MigrationView", "NotReady", "trace_id"]
