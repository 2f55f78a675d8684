"""Conda packages: solved for the target, linked into the environment."""
