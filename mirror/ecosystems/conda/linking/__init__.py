"""Packages into a prefix, judged before they are linked, and what is told of it: the server."""
