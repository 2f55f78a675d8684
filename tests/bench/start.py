"""How soon mirror answers."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.bench.rows import Compared, Group, Row, run


class Start(Group):
    """The help, against the import of what draws it."""

    name = "start"
    aims = (Compared("mirror --help", "import click", 1.5),)

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.folder = folder

    def rows(self) -> list[Row]:
        """Each is a fresh interpreter."""
        return [
            self.python("mirror --help", "-m", "mirror", "--help"),
            self.python("import click", "-c", "import click"),
        ]

    def python(self, name: str, *arguments: str) -> Row:
        return Row(name, lambda: run(sys.executable, *arguments, folder=self.folder))
