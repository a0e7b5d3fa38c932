"""Commands around one job."""
