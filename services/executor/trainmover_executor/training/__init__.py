"""The program's training loop: sessions, steps, attempts, votes, and what happens between steps."""
