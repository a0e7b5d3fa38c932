"""What a process group delegates to, and which one it is."""
