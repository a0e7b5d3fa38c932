"""A process that has torch imported and forks workers in milliseconds."""
