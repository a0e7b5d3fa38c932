"""What a network makes of rings: how flows meet on ports, and what that costs a step."""
