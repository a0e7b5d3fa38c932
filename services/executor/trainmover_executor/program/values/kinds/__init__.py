"""Values by their classes: those told of by a name, containers derived from Python's."""
