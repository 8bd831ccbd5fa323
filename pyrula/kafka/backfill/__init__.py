"""Backfills: a range of a topic's records run through a workflow, beside what arrives.

A worker's `service` looks for backfills of its workflows. Each is `running` in every worker that has it: it takes
partitions under leases of the store, and runs each as a `part`, with lanes, journals and replayers as a binding has
them; only the assignment is by lease and not by group, and what is done is saved in the store and not committed.
"""

from pyrula.kafka.backfill.definition import Backfill

__all__ = ["Backfill"]
