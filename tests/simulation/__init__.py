"""The whole protocol in virtual time: real planner, detector and agent cores, modelled ranks."""
