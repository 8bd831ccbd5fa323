"""Durable stream processing on Kafka topics: async functions that survive redelivery, crashes and restarts."""

__version__ = "0.1.0"

__all__ = ["__version__"]
