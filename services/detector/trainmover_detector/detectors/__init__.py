"""The detectors that come with TrainMover; each is a plugin."""
