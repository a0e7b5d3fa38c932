"""Migrations: requested, decided by policy, asked for by operators."""
