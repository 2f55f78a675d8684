"""Bytes from the network, for every kind of artifact; on the builder only."""
