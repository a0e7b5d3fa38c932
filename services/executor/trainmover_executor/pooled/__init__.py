"""A machine of a pool: it waits, and runs the agent of whichever job it is assigned to.

Read ``core`` first: what is decided. ``service`` carries it out.
"""
