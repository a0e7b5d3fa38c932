"""A bus that trusts nobody: roles and their permissions, keys, certificates, the server's file."""
