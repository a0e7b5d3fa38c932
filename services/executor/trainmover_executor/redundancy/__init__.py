"""Where the state of a rank survives its machine: in replicas, or with a follower."""
