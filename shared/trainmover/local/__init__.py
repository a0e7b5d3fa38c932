"""A whole cluster as processes of one host: machines, services and bus, for demo, test and work.

Read in this order: ``procfs`` (what the kernel knows about our processes), ``process`` (one child
that cannot outlive us), ``registry`` (how a second terminal finds the job), ``ledger`` (when is
the job over, pure), ``cluster`` (the supervisor).
"""
