"""What every test shares: names that each worker gives alike."""

from __future__ import annotations

from pytest import Config


def pytest_make_parametrize_id(config: Config, val: object, argname: str) -> str | None:
    """Name bytes by their length: what compresses writes the hour, and workers must agree on names."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None
