"""The user's program as it runs: its frames and variables, and what can be carried of them."""
