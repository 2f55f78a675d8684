"""PYTHON .../trainer/__main__.py COMMAND [OPTION...]."""

from __future__ import annotations

import importlib.util
import os
import sys


def _load_package() -> None:
    """Make this folder importable as `trainer`, and nothing beside it.

    Started by path, Python looks for imports in this very folder. That is taken away: a module
    here must not stand in for one of the environment, wherever the folder lies.
    """
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    file = os.path.join(here, "__init__.py")
    spec = importlib.util.spec_from_file_location(
        "trainer", file, submodule_search_locations=[here]
    )
    assert spec is not None  # noqa: S101 -- the file is there: this one is beside it
    assert spec.loader is not None  # noqa: S101
    package = importlib.util.module_from_spec(spec)
    sys.modules["trainer"] = package
    spec.loader.exec_module(package)


def main() -> int:
    """Run one command; returns its exit code."""
    if "trainer" not in sys.modules:
        _load_package()
    command, arguments = sys.argv[1], sys.argv[2:]
    if command == "train":
        from trainer import train

        return train.main(arguments)
    if command == "collectives":
        from trainer import measure

        return measure.main(arguments)
    if command == "packages":
        from trainer import packages

        return packages.main(arguments)
    if command == "torch":
        from trainer import stack

        return stack.main(arguments)
    if command == "models":
        from trainer import models

        return models.main(arguments)
    if command == "ray":
        from trainer import ray_check

        return ray_check.main(arguments)
    if command == "vllm":
        from trainer import vllm_check

        return vllm_check.main(arguments)
    print(f"trainer: no such command: {command}", file=sys.stderr)
    return 2


def _leave(code: int) -> None:
    """End the process without tearing torch down.

    The result is on disk and the process group is gone. What is left, torch's own threads and
    static objects, now and then aborts a rank on its way out ("terminate called without an active
    exception"), which says nothing about the training.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _leave(main())
