"""Process groups: operations run in order, on communicators that can be swapped."""
