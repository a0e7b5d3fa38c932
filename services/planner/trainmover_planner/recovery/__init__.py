"""Recovery: what follows when machines die, also in the middle of a migration."""
