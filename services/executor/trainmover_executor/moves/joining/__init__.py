"""The part of a standby: it waits, goes to where the job stands, and takes over."""
