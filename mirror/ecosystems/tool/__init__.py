"""mirror itself and what it needs on the server."""
