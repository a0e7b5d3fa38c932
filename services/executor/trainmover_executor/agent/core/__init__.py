"""What an agent decides: a pure core, and what it knows."""
