"""Values and rules: no files, no network, no clock, no processes."""
