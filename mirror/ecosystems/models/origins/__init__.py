"""Where repositories come from: a Hub, a cache of it, a folder, a wheel."""
