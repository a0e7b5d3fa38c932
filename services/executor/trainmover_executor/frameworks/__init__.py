"""Adapters for training frameworks; each is imported by the program that uses the framework."""
