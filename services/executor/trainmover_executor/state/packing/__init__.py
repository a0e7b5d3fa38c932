"""State as bytes: portable trees, checksums."""
