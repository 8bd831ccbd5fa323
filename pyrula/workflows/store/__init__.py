"""Stores: the port, and its implementations in memory and on Valkey."""
