"""What optimizers are set to and keep, taken over in place where that is possible."""
