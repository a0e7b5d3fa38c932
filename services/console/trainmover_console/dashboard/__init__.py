"""The dashboard: one page about one job, fed by server-sent events.

It looks with a user of the bus that can change nothing. Approving, rejecting and aborting go
through a second user, and only for callers who know the token.
"""
