"""Roots with a generation whose environment has this one's packages: torch, accelerate and all."""

from __future__ import annotations

import sys
import venv
from pathlib import Path

from mirror.core.index import Index
from mirror.core.target import Target
from mirror.machine import this_python
from mirror.store.generation import Generation
from mirror.store.generations import Root


def root_with_environment(folder: Path) -> Root:
    """A root with one generation, of nothing but an environment."""
    root = Root(folder)
    root.prepare()
    generation = root.begin()
    make_environment(generation)
    index = Index("small", "1", "0.1.0", "0" * 64, Target(this_python(), "linux-x86_64"), ())
    root.finish(generation, index)
    root.commit(generation)
    return root


def make_environment(generation: Generation) -> None:
    """A virtual environment layered over the running one."""
    venv.create(generation.env, symlinks=True)
    inside = next(generation.env.glob("lib/python3*/site-packages"))
    over = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    lines = [f"import site; site.addsitedir({path!r})\n" for path in over]
    (inside / "over.pth").write_text("".join(lines), encoding="utf-8")
