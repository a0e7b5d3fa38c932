"""Links within a host: memory that both ends share."""
