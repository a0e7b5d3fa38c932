"""Training state: what it is made of, how it is described, moved and checked."""
