"""From source to a wheel that is kept: git checkouts, and what is common to all that is built."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

from mirror.core.artifact import Artifact
from mirror.core.paths import masked, shown
from mirror.core.requirements.values import GitUrl
from mirror.ecosystems.folders import files_in
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, MachineError, ResolutionError
from mirror.store.blobs import hash_file

#: Folders at the top of a project that are made from its sources; below, the names are anybody's.
_NOT_SOURCE = frozenset({".venv", "venv", "build", "dist", ".tox", ".nox", "node_modules"})
_COMMIT = re.compile(r"[0-9a-f]{40}")


def commit_of(place: GitUrl) -> str:
    """The commit that a git place means now. Raises DownloadError when the repository has none."""
    if place.revision and _COMMIT.fullmatch(place.revision):
        return place.revision
    wanted = place.revision or "HEAD"
    lines = _git("ls-remote", place.url, wanted, f"{wanted}^{{}}").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        commit, _, name = line.partition("\t")
        found[name] = commit
    # An annotated tag is an object of its own; with ^{} stands the commit that it names.
    for name in (f"refs/tags/{wanted}^{{}}", f"refs/tags/{wanted}", f"refs/heads/{wanted}", wanted):
        if name in found:
            return found[name]
    if re.fullmatch(r"[0-9a-f]{7,39}", wanted):
        raise DownloadError(
            f"{place.where}: {wanted} is no branch or tag of the repository",
            hint="Write a commit with all its 40 digits.",
        )
    raise DownloadError(f"{place.where}: the repository has no branch or tag {wanted}")


def checkout(place: GitUrl, commit: str, folder: Path) -> Path:
    """The repository at that commit, with its submodules; the subdirectory that is meant."""
    target = folder / f"git-{commit[:12]}-{len(list(folder.iterdir()))}"
    _git("init", "--quiet", str(target))
    _git("fetch", "--quiet", "--depth=1", place.url, commit, inside=target)
    _git("checkout", "--quiet", commit, inside=target)
    # A relative address of a submodule starts at the repository's own.
    _git("remote", "add", "origin", place.url, inside=target)
    _git("submodule", "--quiet", "update", "--init", "--recursive", "--depth=1", inside=target)
    source = target / (place.subdirectory or ".")
    if not source.is_dir():
        raise ResolutionError(f"{place.where}: the repository has no folder {place.subdirectory}")
    return source


def keep(wheel: Path, context: Context) -> tuple[int, str]:
    """Put a built wheel into the store: its size and sha256."""
    sha256 = hash_file(wheel)
    if not context.blobs.has(sha256):
        staged = context.blobs.staging()
        shutil.copyfile(wheel, staged)
        context.blobs.admit(staged, sha256)
    return wheel.stat().st_size, sha256


def again(artifact: Artifact, context: Context, build: Callable[[Path], Path]) -> Path:
    """Build a locked wheel that the store has no more.

    Raises ResolutionError when other bytes come out than the lock names: they are not used.
    """
    with TemporaryDirectory(prefix="mirror-") as name:
        _, sha256 = keep(build(Path(name).resolve()), context)
    if sha256 != artifact.sha256:
        raise ResolutionError(
            f"{artifact.text('file')} was built again and came out different",
            problems=[f"the lock names sha256 {artifact.sha256}", f"now it has {sha256}"],
            hint="Take the new one by locking again (mirror lock --upgrade"
            f" {artifact.text('name')}), or build where the lock was made.",
        )
    return context.blobs.path(sha256)


def project_files(folder: Path) -> dict[str, Path]:
    """The files of a project without what is made from them: relative path with / -> file.

    Links to folders are among them. Raises UsageError as files_in does.
    """
    return files_in(
        folder,
        leave_out=lambda name: name in _NOT_SOURCE or name.endswith(".egg-info"),
        folder_links=True,
    )


def folder_digest(folder: Path, context: Context) -> str:
    """What changes when a file of a project does."""
    digest = hashlib.sha256()
    for name, path in project_files(folder).items():
        content = os.readlink(path) if path.is_dir() else context.hashes.of(path)[1]
        digest.update(f"{name} {content}\n".encode())
    return digest.hexdigest()


def copy_project(source: Path, folder: Path) -> Path:
    """A project's files in a new folder below `folder`, all of them writable.

    A build leaves things in the folder that it runs in, and ships those that it finds there.
    """
    source, target = source.resolve(), Path(mkdtemp(prefix="project-", dir=folder))
    if (source / ".git").exists():
        # Many take their version from git. Where it cannot be asked, neither can a build.
        with suppress(DownloadError, MachineError):
            _git("clone", "--quiet", "--shared", "--no-checkout", str(source), str(target))
            _git("reset", "--quiet", inside=target)
    for name, path in project_files(source).items():
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            meant = path.resolve()
            inside = meant.is_relative_to(source)
            copy.symlink_to(os.path.relpath(meant, path.parent) if inside else meant, True)
        else:
            shutil.copy(path, copy)
            copy.chmod(copy.stat().st_mode | 0o200)
    return target


def link(blob: Path, name: Path) -> None:
    """A blob under a file name of its own, for programs that read the name."""
    try:
        name.symlink_to(blob.absolute())
    except OSError:  # Windows lets only some users make symbolic links
        shutil.copyfile(blob, name)


def _git(*arguments: str, inside: Path | None = None) -> str:
    """Run git, asking nobody for a password. Raises DownloadError with its own words."""
    command = ["git", *(("-C", str(inside)) if inside else ()), *arguments]
    environment = os.environ | {"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "0"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        raise MachineError("a requirement is in a git repository, and git is not here") from None
    if done.returncode != 0:
        said = masked(done.stderr).strip().splitlines()
        raise DownloadError(
            f"git {arguments[0]} failed", problems=[shown(line) for line in said[-5:]]
        )
    return done.stdout
