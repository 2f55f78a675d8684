"""Conda packages on the server: linked into the generation's environment, without conda.

rattler is given the generation's own channel and nothing else, opens no connection, runs no script
of a package, and is trusted with no byte that was not compared before: it checks neither the hash
of a local package nor the paths in it.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.core.artifact import Artifact
from mirror.ecosystems.conda import archives, bridge
from mirror.ecosystems.conda.archives import Contents
from mirror.ecosystems.conda.records import REPODATA, is_package, record
from mirror.ecosystems.conda.records import brings_python as brings_python
from mirror.ecosystems.deploy import Site
from mirror.errors import BundleError, MachineError, MirrorError
from mirror.store.blobs import hash_file, place
from mirror.store.generations import remove_tree

if TYPE_CHECKING:
    import rattler

#: Where rattler puts, of a file that several packages bring, those that are not used.
_CLOBBERED = "__clobbers__"
_REFUSED = re.compile(r"No space left|Permission denied|Read-only file system|Disk quota", re.I)


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay the packages out as a channel, and link them all into the environment's prefix.

    Raises BundleError for packages that are not what the index says or cannot be unpacked, and
    MachineError for what this machine does not let be done.
    """
    for artifact in artifacts:
        place(site.blobs.path(artifact.sha256), site.generation.path / artifact.path)
    _compare(artifacts, site)
    records = _records(artifacts, site)
    contents = _contents(artifacts, site)
    _fits(contents, site)
    _install(records, site)
    for file in (site.generation.env / "conda-meta").glob("*.json"):
        file.chmod(0o644)  # rattler writes them for their owner alone
    for line in _remarks(contents, site.generation.env):
        site.progress.warn(line)


def _compare(artifacts: Sequence[Artifact], site: Site) -> None:
    """Hash every file of the channel again: the last look before rattler reads it."""
    changed = [a for a in artifacts if hash_file(site.generation.path / a.path) != a.sha256]
    if changed:
        raise BundleError(
            "conda packages in the store have changed",
            problems=[f"{a.path}: {site.blobs.path(a.sha256)}" for a in changed],
            hint="Remove these files and install the bundle again.",
        )


def _records(artifacts: Sequence[Artifact], site: Site) -> list[rattler.RepoDataRecord]:
    """The channel's records. Raises BundleError unless they are the index's packages, all of them.

    Whoever uses the channel without mirror then gets what mirror installs.
    """
    import rattler

    channel = rattler.Channel(str(site.generation.conda))
    files = [site.generation.path / a.path for a in artifacts if not is_package(a)]
    try:
        found = bridge.run(_load(channel, files))
    except bridge.RattlerError as error:
        raise BundleError(f"the bundle's {REPODATA} is malformed", problems=error.lines) from None
    strange = [known.file_name for known in found if not known.url.startswith(channel.base_url)]
    described = {(f"conda/{r.subdir}/{r.file_name}", (r.sha256 or b"").hex()) for r in found}
    carried = {(a.path, a.sha256) for a in artifacts if is_package(a)}
    names = Counter(known.name.normalized for known in found)
    wrong = [f"{name} is to come from elsewhere" for name in strange]
    wrong += [path for path, _ in sorted(described ^ carried)]
    wrong += [f"{name} is there {count} times" for name, count in names.items() if count > 1]
    if wrong:
        raise BundleError(
            f"the bundle's conda packages are not those that its {REPODATA} describes",
            problems=dict.fromkeys(wrong),
        )
    return found


async def _load(channel: rattler.Channel, files: Sequence[Path]) -> list[rattler.RepoDataRecord]:
    from rattler import PackageFormatSelection, SparseRepoData

    both = PackageFormatSelection.BOTH
    folders = [SparseRepoData(channel, file.parent.name, file) for file in files]
    return [known for folder in folders for known in folder.load_all_records(both)]


def _contents(artifacts: Sequence[Artifact], site: Site) -> dict[str, Contents]:
    """What each package installs, by its name."""
    found: dict[str, Contents] = {}
    problems = []
    for artifact in filter(is_package, artifacts):
        try:
            contents = archives.read(site.generation.path / artifact.path)
        except ValueError as error:
            problems.append(f"{artifact.text('file')}: {error}")
        else:
            found[str(record(artifact).get("name"))] = contents
    if problems:
        raise BundleError("conda packages cannot be installed", problems=problems)
    return found


def _fits(contents: Mapping[str, Contents], site: Site) -> None:
    """Raise MachineError when the prefix is too long for the binary files that will hold it."""
    prefix = site.generation.env
    length = len(str(prefix).encode())
    short = [
        f"{name}: at most {found.prefix_limit}"
        for name, found in contents.items()
        if found.prefix_limit is not None and found.prefix_limit < length
    ]
    if short:
        raise MachineError(
            f"the path {prefix} has {length} bytes, too many for conda packages that hold it",
            problems=short,
            hint="Choose a shorter --root DIR.",
        )


def _install(records: Sequence[rattler.RepoDataRecord], site: Site) -> None:
    import rattler

    target = site.index.target
    if target is None:
        raise BundleError("the bundle has conda packages and names no target for them")
    cache = Path(tempfile.mkdtemp(prefix=".conda-", dir=site.generation.path))
    try:
        with site.progress.bar("linking conda packages", len(records), "packages") as advance:

            class Reporter(rattler.InstallerReporter):
                def on_link_complete(self, index: int) -> None:
                    advance(1)

            bridge.run(
                rattler.install(
                    list(records),
                    site.generation.env,
                    cache_dir=cache,
                    installed_packages=[],
                    platform=rattler.Subdir(target.subdir),
                    execute_link_scripts=False,
                    client=rattler.Client(),
                    reporter=Reporter(),  # type: ignore[abstract]  # all its methods have bodies
                )
            )
    except bridge.RattlerError as error:
        raise _explained(error) from None
    finally:
        remove_tree(cache)


def _explained(error: bridge.RattlerError) -> MirrorError:
    if any(_REFUSED.search(line) for line in error.lines):
        return MachineError("conda packages could not be installed", problems=error.lines)
    return BundleError("conda packages cannot be installed", problems=error.lines)


def _remarks(contents: Mapping[str, Contents], prefix: Path) -> Iterator[str]:
    """What was not done as the packages wanted it."""
    for name, found in sorted(contents.items()):
        for script in found.link_scripts:
            yield f"{name}: {script} was not run; mirror runs no script of a conda package"
    lost: dict[str, list[str]] = defaultdict(list)
    for folder in sorted((prefix / _CLOBBERED).glob("*")):
        for path in folder.rglob("*"):
            if path.is_symlink() or path.is_file():
                lost[path.relative_to(folder).as_posix()].append(folder.name)
    used = {
        file: name
        for name, found in contents.items()
        for file in found.files
        if file in lost and name not in lost[file]
    }
    for file, losers in sorted(lost.items()):
        winner = f"that of {used[file]} is used, " if file in used else ""
        yield f"{file} is in several conda packages: {winner}not that of {' and '.join(losers)}"
