"""What an agent and the processes of its machine say to each other."""
