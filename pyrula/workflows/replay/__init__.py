"""The replay machine, without I/O: what a body asked for, and what its journal answers."""
