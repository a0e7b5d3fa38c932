"""What the declared policy says about an incident. Pure functions of the state."""
