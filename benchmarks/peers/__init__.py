"""One job under TrainMover and under its peers, disturbed in the same ways."""
