"""The planner service: chooses the standby, writes the plan and tracks each migration."""
