"""The worker processes of a machine: forked, heard, told, ended."""
