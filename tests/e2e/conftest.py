"""The demo, built and installed once for all end-to-end tests, as a person would do it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def mirror(
    *arguments: object,
    cwd: Path | None = None,
    code: int = 0,
    environment: dict[str, str] | None = None,
    before: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own; check its exit code and that nothing leaked."""
    done = subprocess.run(
        [*before, sys.executable, "-m", "mirror", *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)} | (environment or {}),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def mirror_json(*arguments: object, cwd: Path | None = None, code: int = 0) -> Any:
    """The same with --json: the one document on stdout."""
    return json.loads(mirror(*arguments, "--json", cwd=cwd, code=code).stdout)


@dataclass(frozen=True, slots=True)
class Demo:
    """A copy of `manifests/`, the bundle built from it, and a root where it is installed."""

    folder: Path
    bundle: Path
    digest: str
    root: Path

    @property
    def generation(self) -> Path:
        return (self.root / "current").resolve()

    @property
    def python(self) -> Path:
        return self.generation / "env" / "bin" / "python"


@pytest.fixture(scope="session")
def demo_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A builder's cache for all tests of this process, not the user's."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["MIRROR_CACHE"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def demo_bundle(tmp_path_factory: pytest.TempPathFactory, demo_cache: Path) -> Demo:
    folder = tmp_path_factory.mktemp("demo")
    assert demo_cache.is_dir()
    shutil.copytree(
        CHECKOUT / "manifests", folder / "manifests", ignore=shutil.ignore_patterns("*.lock.toml")
    )
    built = mirror_json("build", "manifests/demo.yaml", cwd=folder)
    return Demo(folder, folder / built["bundle"], built["digest"], folder / "root")


@pytest.fixture(scope="session")
def demo(demo_bundle: Demo) -> Demo:
    mirror("install", demo_bundle.bundle, "--root", demo_bundle.root)
    return demo_bundle
