"""Which files of a repository are carried, what they would run, and what must be there."""
