"""What a program calls of torch and must not, or not as it is: backends, saves, checkpoints."""
