"""Commands that serve until they are ended."""
