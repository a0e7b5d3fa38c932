"""The clock of collectives and steps: shared memory that the training process writes."""
