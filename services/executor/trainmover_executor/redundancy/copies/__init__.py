"""What a follower holds of its neighbour: a copy that takes the same steps, or a snapshot."""
