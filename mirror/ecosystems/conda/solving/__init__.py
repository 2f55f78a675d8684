"""Which packages satisfy a section on the target, and what is in them: the builder's side."""
