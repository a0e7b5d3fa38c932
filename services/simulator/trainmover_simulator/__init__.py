"""What failures cost a large job: published failure rates, published recovery times, one clock.

Read in this order: ``failures`` (what fails, and how often), ``scenario`` (what surrounds a job),
``systems`` (what recovery costs with each system), ``replay`` (one job through one history of
failures), ``figures`` (the papers' figures, and ours). ``planner_run`` puts the planner's real core
through the same history. ``pool`` is a formula for the number of standbys, and ``pool_run`` the
history that it is held to. ``observed`` and ``measured`` take the parameters from a job's own
facts. Pure: no I/O, no clock; what is random comes from a seed.
"""
