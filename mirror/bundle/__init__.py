"""The bundle's bytes: written, and read without trust."""
