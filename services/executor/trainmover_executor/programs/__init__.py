"""Training programs that ship with TrainMover: the demo's."""
