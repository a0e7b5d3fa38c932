"""The bus on NATS and JetStream."""
