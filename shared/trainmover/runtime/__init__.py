"""What every service runs on: runner, lease, health file, fail-points."""
