"""What is noted of each step: metrics, timing, costs."""
