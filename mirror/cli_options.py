"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


class _Path(click.Path):
    """A path; an empty one, such as of a variable that is not set, would mean this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)


PATH = _Path(path_type=Path)

trust = click.option(
    "--trust",
    metavar="FILE",
    type=PATH,
    help="The file of trusted keys (allowed_signers); else $MIRROR_TRUST, else this person's and"
    " this machine's.",
)
