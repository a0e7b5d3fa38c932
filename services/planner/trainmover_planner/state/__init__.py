"""What the planner knows, and one transition of it."""
