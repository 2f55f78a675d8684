"""A folder on this machine as a repository: a checkpoint, what a trainer left."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.core.manifest import FolderRepository
from mirror.ecosystems.folders import files_in
from mirror.ecosystems.models.origins import card
from mirror.ecosystems.models.repository import File, Snapshot
from mirror.ecosystems.source import Context
from mirror.errors import UsageError


def snapshot(kind: str, item: FolderRepository, commit: str, context: Context) -> Snapshot:
    """The files that are in the folder now. Raises UsageError when it cannot be carried."""
    folder = context.folder / item.path
    if not folder.exists():
        raise UsageError(
            f"{item.name}: the folder {folder} is missing",
            hint="A `path` starts at the manifest's folder.",
        )
    if folder.is_file():
        raise UsageError(
            f"{item.name}: {folder} is a file, and `path` names a folder",
            hint=f"Name the folder that it is in, and carry it alone with include: [{folder.name}]",
        )
    # Hidden folders are what tools keep beside a model, such as .cache/huggingface.
    found = files_in(folder, leave_out=lambda path: path.rpartition("/")[2].startswith("."))
    if not found:
        raise UsageError(f"{item.name} is empty: {folder} holds no files")
    try:
        files = tuple(File(path, file.stat().st_size, place=file) for path, file in found.items())
    except OSError as error:
        raise UsageError(
            f"{error.filename} cannot be read: {error.strerror}",
            hint="Does something still write to the folder? Build when it has finished.",
        ) from None
    return Snapshot(files, facts=card.facts(files))


def requests(
    kind: str, artifacts: Sequence[Artifact], item: FolderRepository, context: Context
) -> list[Path]:
    """The files are where they are."""
    return [context.folder / item.path / artifact.text("file") for artifact in artifacts]
