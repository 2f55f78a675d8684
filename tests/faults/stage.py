"""The scenes: installs, gc, rollback, pin; builds."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.invariants import Built, Whole
from tests.faults.scenes import Scene, Workshop, copy
from tests.faults.tracing import Command


def scenes(shop: Workshop, folder: Path, only: Sequence[str] | None = None) -> Iterator[Scene]:
    """Every scene, or those with these names."""
    root = folder / "root"
    found = [*_installs(shop, root), *_environment(shop, root), *_keeping(shop, root)]
    for scene in [*found, *_builds(shop, folder / "b")]:
        if not only or scene.name in only:
            yield scene


def _installs(shop: Workshop, root: Path) -> Iterator[Scene]:
    old, new = shop.old_index, shop.new_index

    def nothing() -> None:
        """The root is not there."""

    def first() -> None:
        shop.do("install", shop.old, "--root", root)

    install = ("install", shop.old, "--root", root)
    yield Scene(
        "first",
        shop.command(*install, watched=[root]),
        nothing,
        Whole([old], current=[None, old.digest]),
        shop.bundles,
        parts=("kills", "errors", "rivals", "cuts", "order"),
        rival=shop.command(*install),
    )
    increment = ("install", shop.new, "--root", root)
    yield Scene(
        "increment",
        shop.command(*increment, watched=[root]),
        first,
        Whole([old, new], current=[old.digest, new.digest]),
        shop.bundles,
        parts=("kills", "errors", "rivals", "cuts", "order"),
        rival=shop.command("gc", "--root", root),
    )
    yield Scene(
        "chain",
        shop.command("install", shop.old, shop.new, "--root", root, watched=[root]),
        nothing,
        Whole([new], current=[None, new.digest]),
        shop.bundles,
    )


def _keeping(shop: Workshop, root: Path) -> Iterator[Scene]:
    old, new = shop.old_index, shop.new_index
    whole = Whole([old, new], current=[old.digest, new.digest])

    def both() -> None:
        shop.do("install", shop.old, "--root", root)
        shop.do("install", shop.new, "--root", root)

    rollback = ("rollback", "1", "--root", root)
    yield Scene("rollback", shop.command(*rollback, watched=[root]), both, whole)
    yield Scene("pin", shop.command("pin", "1", "--root", root, watched=[root]), both, whole)
    collect = ("gc", "--keep", "0", "--root", root)
    kept = Whole([old, new], current=[new.digest])
    yield Scene("gc", shop.command(*collect, watched=[root]), both, kept)


def _builds(shop: Workshop, folder: Path) -> Iterator[Scene]:
    """Into a cache, a project's folder and one for bundles; what is noted there is not compared."""
    cache, project, out = folder / "cache", folder / "project", folder / "out"
    places = [cache, project, out]
    there = {"MIRROR_CACHE": str(cache)}

    def fresh() -> None:
        copy(shop.project, project)
        (project / "mirror.lock.toml").unlink()

    def before() -> None:
        """A set of volumes of the same name, of another size, and what it was built with."""
        copy(shop.project, project)
        copy(shop.cache, cache)
        shop.do("build", "-o", out / "b.tar.gz", "--volume-size", "90k", at=project, **there)

    def command(*more: str) -> Command:
        line = ("build", "-o", out / "b.tar.gz", *more)
        return shop.command(*line, watched=places, at=project, **there)

    whole = Built(out)
    yield Scene("build", command(), fresh, whole, ignored=["cache/*"], points=150)
    volumes = command("--since", str(shop.full), "--volume-size", "200k")
    yield Scene("volumes", volumes, before, whole, shop.bundles, ignored=["cache/*"])


def _environment(shop: Workshop, root: Path) -> Iterator[Scene]:
    """Some points only, since each makes an environment; what Python compiles is not compared."""
    whole = Whole([shop.wheels_index], current=[None, shop.wheels_index.digest])

    def nothing() -> None:
        """The root is not there."""

    def usable(place: Path) -> list[str]:
        found = whole(place)
        for python in place.glob("current/env/bin/python"):
            command = [str(python), "-c", "import alpha, beta"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            found += [done.stderr] if done.returncode else []
        return found

    yield Scene(
        "environment",
        shop.command("install", shop.wheels, "--root", root, watched=[root]),
        nothing,
        usable,
        shop.bundles,
        parts=("kills", "errors"),
        ignored=["root/log/*", "root/generations/*/env/*", "root/generations/*/seal"],
        points=40,
    )
