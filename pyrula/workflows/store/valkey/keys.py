"""Names of keys and hash fields: pure functions, written down in docs/formats.md.

Every key of a source carries the hash tag of its shard, so a script about one source touches one slot. Text from
users never stands in a key as it is: a namespace is checked, a source's id is hexadecimal.
"""

import re
from functools import lru_cache

from pyrula.workflows.errors import ConfigurationError

BUCKET_BITS = 10
"""A journal is cut into hashes of 1,024 positions each."""

_NAMESPACE = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


def check_namespace(namespace: str) -> str:
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        raise ConfigurationError(
            f"namespace {namespace!r:.100} can't be used in keys: it must be 1 to 64 letters, digits, '_', '-' or '.'"
        )
    return namespace


def shard_of(source: bytes, shards: int) -> int:
    return int.from_bytes(source) % shards


def bucket_of(position: int) -> int:
    return position >> BUCKET_BITS


def metadata_key(namespace: str) -> bytes:
    """Hash: ``instance``, ``shards``, ``format``. The one key of a namespace that has no TTL."""
    return b"{%b}meta" % namespace.encode()


@lru_cache(maxsize=4096)
def source_keys(namespace: str, shards: int, source: bytes) -> tuple[bytes, bytes]:
    """The source's hash (its state, and one field ``b<bucket>`` a live bucket), and what the key of each bucket of its
    journal begins with: the bucket's number in decimal follows."""
    tag = b"{%b:%d}" % (namespace.encode(), shard_of(source, shards))
    pid = source.hex().encode()
    return b"%bp:%b" % (tag, pid), b"%bj:%b:" % (tag, pid)
