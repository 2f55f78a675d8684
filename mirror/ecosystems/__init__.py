"""One folder for each kind of artifact: source.py on the builder, deploy.py on the server."""
