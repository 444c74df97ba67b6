"""What an operator sees: logs now, metrics, health and pages later."""
