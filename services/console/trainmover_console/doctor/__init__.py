"""Finds the usual mistakes before or while a job runs, and says the cure of each.

Facts about this host, the bus and the machines are gathered first; what they mean is judged by pure
functions, so that every fault can be tested without having it.
"""

from trainmover_console.doctor.symptom import Level, Symptom, worst

__all__ = ["Level", "Symptom", "worst"]
