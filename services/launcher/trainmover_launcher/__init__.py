"""A job on one host: its processes, started, watched and ended."""
