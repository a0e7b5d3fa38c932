"""What people do every day: train, look, move a machine."""
