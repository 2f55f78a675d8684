"""Python packages: resolved for the target, installed into the environment."""
