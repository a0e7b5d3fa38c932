"""The machine agent: one per machine, starts its workers and speaks for it on the bus.

Read in this order: ``state`` and ``effects`` (what the agent knows, what can happen, what it can
do), ``transition`` (one being made), ``core`` (the state machine), ``standby`` and ``plans`` (its
two larger parts), then the shell: ``options``, ``listeners``, ``forks`` (the fork server's
client), ``control_link`` and ``workers`` (processes), ``outbox`` and ``telemetry`` (what leaves on
the bus), ``service`` (all of it together).

Nothing here imports torch.
"""
