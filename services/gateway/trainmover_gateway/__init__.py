"""What other systems use: webhooks out, notices of departures in."""
