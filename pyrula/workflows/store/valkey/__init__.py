"""The store on Valkey (or Redis) >= 7.2. redis-py is imported in this package only."""

from pyrula.workflows.store.valkey.store import ValkeyStore

__all__ = ["ValkeyStore"]
