"""The NATS JetStream adapter: the only package that imports `nats`."""
