"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from mirror.store.generations import Root


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
manifest = click.argument("manifest", required=False, type=PATH)
root = click.option(
    "--root",
    type=PATH,
    help="The directory that mirror owns here; else $MIRROR_ROOT, else /opt/mirror for root.",
)
sbom = click.option("--sbom", is_flag=True, help="Print its bill of materials (CycloneDX).")
licences = click.option("--licences", is_flag=True, help="List which licence covers what.")
detach = click.option("--detach", is_flag=True, help="Go on without this terminal.")
attach = click.option(
    "--attach",
    metavar="[RUN]",
    is_flag=False,
    flag_value="",
    help="Follow what was detached: RUN by name or folder, else what is running.",
)


def open_root(path: Path | None) -> Root:
    """The root asked for, else the usual one."""
    from mirror.install import default_root
    from mirror.store.generations import Root

    return Root(path or default_root())
