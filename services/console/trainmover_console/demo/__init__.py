"""The demo: a slow machine is named and moved, another is killed, and no bit of training differs.

Read in this order: ``metrics`` (what ranks wrote), ``compare`` (are two runs the same, pure),
``lateness`` (who keeps the others waiting, pure), ``scenario`` (when to hurt whom, pure),
``faults`` (how), ``play`` (both runs and the verdict), ``live`` (the terminal), ``report`` (the
page).
"""
