"""What a job's own facts say: how often it was interrupted, and for how long."""
