"""Logs, spans, and the timeline that events make."""
