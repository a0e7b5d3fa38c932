"""What failures cost a large job: published failure rates, published recovery times, one clock.

Read in this order: ``failures`` (what fails, and how often), ``scenario`` (what surrounds a job),
``systems`` (what recovery costs with each system), ``replay`` (one job through one history of
failures), ``figures`` (the papers' figures, and ours). ``planner_run`` puts the planner's real core
through the same history. ``sizing`` is a formula for the number of standbys, with the histories
that it is held to; ``jobs`` takes the parameters from a job's own facts. Pure: no I/O, no clock;
what is random comes from a seed.
"""
