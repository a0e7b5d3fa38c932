"""What an active rank sends to the standbys of its slot: recording, place."""
