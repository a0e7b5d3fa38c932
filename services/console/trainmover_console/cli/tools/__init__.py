"""Commands that set up, try out and examine."""
