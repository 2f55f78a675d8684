"""What every test shares: names that each worker gives alike."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def nobodys_configuration() -> Iterator[None]:
    """Whom the person at this machine trusts has no say in the tests."""
    before = os.environ.get("XDG_CONFIG_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CONFIG_HOME"] = folder
        yield
    if before is None:
        del os.environ["XDG_CONFIG_HOME"]
    else:
        os.environ["XDG_CONFIG_HOME"] = before


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by their length: compressed ones hold the hour, and workers must agree."""
    return f"{argname}-{len(val)}-bytes" if isinstance(val, bytes) else None
