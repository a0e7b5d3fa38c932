"""The executor: the machine agent, and the part of it that lives inside the training process."""
