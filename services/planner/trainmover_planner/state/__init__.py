"""What the planner knows, and a turn of changing it."""
