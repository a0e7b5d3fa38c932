"""The job: its slots, machines, plans and addresses."""
