"""What is installed in this environment, by its own record. Imports nothing that is installed."""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import sys
from pathlib import Path

from trainer.results import write_json


def main(arguments: list[str]) -> int:
    """Leave {"python", "prefix", "packages": {normalized name: version}} in a file."""
    parser = argparse.ArgumentParser(prog="trainer packages")
    parser.add_argument("--out", type=Path, required=True, help="file for the answer")
    options = parser.parse_args(arguments)
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # the first on the path is the one that imports
            found.setdefault(re.sub(r"[-_.]+", "-", name).lower(), distribution.version)
    version = ".".join(str(part) for part in sys.version_info[:3])
    answer = {"python": version, "prefix": sys.prefix, "packages": found}
    write_json(options.out, answer)
    return 0
