"""The log on a NATS broker."""
