"""What every test shares: names that each worker gives alike."""

from __future__ import annotations

import pytest


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by their length: compressed ones hold the hour, and workers must agree."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None
