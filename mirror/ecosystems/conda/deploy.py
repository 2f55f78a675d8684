"""Conda packages on the server: linked into the generation's environment, without conda.

Each package is unpacked beside the environment, its hash taken in the same pass and compared, and
judged as it lies there; then all are linked from there. rattler opens no connection, runs no script
of a package, and is trusted neither to look at a path nor to survive what it is given: it works in
processes of its own.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.core.artifact import Artifact, Json
from mirror.core.paths import shown
from mirror.ecosystems.conda import bridge, links
from mirror.ecosystems.conda.archives import Contents
from mirror.ecosystems.conda.linking import unpacked, workers
from mirror.ecosystems.conda.linking.remarks import remarks
from mirror.ecosystems.conda.linking.scripts import Runner, in_order
from mirror.ecosystems.conda.records import REPODATA, is_package, record, site_packages, stem
from mirror.ecosystems.conda.records import brings_python as brings_python
from mirror.ecosystems.deploy import Site
from mirror.errors import BundleError, MachineError, MirrorError
from mirror.store.blobs import hash_file, place
from mirror.store.generations import remove_tree

if TYPE_CHECKING:
    import rattler

_REFUSED = re.compile(r"No space left|Permission denied|Read-only file system|Disk quota", re.I)
_SITE_PACKAGES = re.compile(r"lib/(python|pypy)[0-9.]*[0-9]t?/site-packages")


@dataclass(frozen=True, slots=True)
class _Package:
    """A package on its way into the prefix.

    archive: where it lies while it is installed. folder: what it is unpacked to, in rattler's
    cache and under the name by which rattler finds it there.
    """

    artifact: Artifact
    archive: Path
    folder: Path

    @property
    def record(self) -> Mapping[str, Json]:
        return record(self.artifact)

    @property
    def name(self) -> str:
        return str(self.record.get("name"))

    @property
    def sha256(self) -> str:
        return self.artifact.sha256


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay the packages out as a channel, and link them all into the environment's prefix.

    The scripts of those that the bundle allows it are run. Raises BundleError for packages that are
    not what the index says or cannot be unpacked, and MachineError for what this machine does not
    let be done, failing scripts among it.
    """
    generation, target = site.generation, site.index.target
    if target is None:
        raise BundleError("the bundle has conda packages and names no target for them")
    if os.path.lexists(generation.env):
        raise MachineError(
            f"{generation.env} is there already",
            hint="Conda packages are linked only into an environment that mirror makes.",
        )
    scratch = generation.path / ".conda-packages"  # of one name always: records will hold it
    scratch.mkdir(mode=0o700)
    try:
        packages = _lay_out(artifacts, site, scratch)
        _compare(artifacts, site)
        _check_records(artifacts, site)
        contents = _unpack(packages, site, scratch)
        _fits(contents, site)
        _install(packages, contents, site, scratch, target.subdir)
    finally:
        remove_tree(scratch)
    for line in remarks(contents, {p.name for p in packages if _may_run(p)}, generation.env):
        site.progress.warn(line)
    for name, found in sorted(contents.items()):
        for menu in found.menus:
            site.progress.detail(f"{name}: {menu} is not added to any menu")


def _lay_out(artifacts: Sequence[Artifact], site: Site, scratch: Path) -> list[_Package]:
    """Place the files of the channel; the packages beside it, until they are linked.

    What rattler does not find unpacked it would unpack itself, unjudged: it finds no archive.
    """
    packages = []
    for artifact in artifacts:
        target = site.generation.path / artifact.path
        if is_package(artifact):
            target = scratch / artifact.path
            folder = scratch / "cache" / Path(stem(artifact)).name
            packages.append(_Package(artifact, target, folder))
        place(site.blobs.path(artifact.sha256), target)
    return packages


def _compare(artifacts: Sequence[Artifact], site: Site) -> None:
    """Hash the channel's own files again. The packages are hashed in the pass that unpacks them."""
    files = [artifact for artifact in artifacts if not is_package(artifact)]
    changed = [a for a in files if hash_file(site.generation.path / a.path) != a.sha256]
    if changed:
        raise _changed(changed, site)


def _changed(artifacts: Sequence[Artifact], site: Site) -> BundleError:
    return BundleError(
        "conda packages in the store have changed",
        problems=[f"{a.path}: {site.blobs.path(a.sha256)}" for a in artifacts],
        hint="Remove these files and install the bundle again.",
    )


def _check_records(artifacts: Sequence[Artifact], site: Site) -> None:
    """Raise BundleError unless the channel's records are the index's packages, all of them.

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
    wrong = [f"{shown(name)} is to come from elsewhere" for name in strange]
    wrong += [shown(path) for path, _ in sorted(described ^ carried)]
    wrong += [f"{name} is there {count} times" for name, count in names.items() if count > 1]
    for known in found:
        if "/" in f"{known.name.normalized}-{known.version}-{known.build}":
            wrong.append(f"{shown(known.file_name)} has a name that would be a path")
        folder = known.python_site_packages_path
        if folder is not None and not _SITE_PACKAGES.fullmatch(folder):
            wrong.append(f"{known.file_name} puts Python's packages into {shown(folder)}")
    if wrong:
        raise BundleError(
            f"the bundle's conda packages are not those that its {REPODATA} describes",
            problems=dict.fromkeys(wrong),
        )


async def _load(channel: rattler.Channel, files: Sequence[Path]) -> list[rattler.RepoDataRecord]:
    from rattler import PackageFormatSelection, SparseRepoData

    both = PackageFormatSelection.BOTH
    folders = [SparseRepoData(channel, file.parent.name, file) for file in files]
    return [known for folder in folders for known in folder.load_all_records(both)]


def _unpack(packages: Sequence[_Package], site: Site, scratch: Path) -> dict[str, Contents]:
    """What each package installs, by its name, judged as it lies unpacked."""
    jobs = [workers.Job(p.archive, p.folder, p.artifact.size) for p in packages]
    (scratch / "cache").mkdir()
    with site.progress.bar("unpacking conda packages", sum(job.size for job in jobs)) as advance:
        answers = workers.unpack(jobs, scratch, advance)
    found, changed, problems = {}, [], []
    lines: list[str] = []
    for package, answer in zip(packages, answers, strict=True):
        file = package.artifact.text("file")
        if isinstance(answer, workers.Refused) and hash_file(package.archive) != package.sha256:
            changed.append(package.artifact)
        elif isinstance(answer, workers.Refused):
            problems.append(f"{file}: {answer.lines[0]}")
            problems += [f"  {line}" for line in answer.lines[1:]]
            lines += answer.lines
        elif answer != package.sha256:
            changed.append(package.artifact)
        else:
            try:
                found[package.name] = unpacked.judge(package.folder, package.record)
            except ValueError as error:
                problems.append(f"{file}: {error}")
    if changed:
        raise _changed(changed, site)
    if problems:
        raise _explained(lines, problems)
    folder = site_packages(package.artifact for package in packages)
    if together := links.problems(found, folder):
        raise BundleError("conda packages do not fit together", problems=together)
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


def _install(
    packages: Sequence[_Package],
    contents: Mapping[str, Contents],
    site: Site,
    scratch: Path,
    subdir: str,
) -> None:
    """Link what is unpacked into the prefix, with the scripts that may run before and after."""
    generation, prefix = site.generation, site.generation.env
    log = generation.path.parent.parent / "log" / f"link-scripts-{generation.path.name}.log"
    runner = Runner(prefix, log, site.progress)
    by_name = {package.name: package for package in packages}
    ordered = [by_name[str(known.get("name"))] for known in in_order(p.record for p in packages)]
    allowed = [package for package in ordered if _may_run(package)]
    prefix.mkdir()
    for package in allowed:
        runner.run("pre-link", package.record, package.folder)
    for package in packages:
        # What rattler's cache has beside a package: that it is whole, and the hash of its archive.
        package.folder.with_name(f"{package.folder.name}.lock").write_bytes(
            (1).to_bytes(8, "big") + bytes.fromhex(package.sha256)
        )
    try:
        with site.progress.bar("linking conda packages", len(packages), "packages") as advance:
            workers.link(
                scratch,
                advance,
                channel=str(generation.conda),
                subdirs=sorted(folder.name for folder in generation.conda.iterdir()),
                prefix=str(prefix),
                cache=str(scratch / "cache"),
                subdir=subdir,
            )
    except workers.Refused as refusal:
        raise _explained(refusal.lines, refusal.lines) from None
    for package in packages:
        os.replace(package.archive, generation.path / package.artifact.path)
    for found in contents.values():
        for folder in found.folders:
            (prefix / folder).mkdir(parents=True, exist_ok=True)
    _tidy(prefix)
    for package in allowed:
        runner.run("post-link", package.record, prefix)


def _tidy(prefix: Path) -> None:
    """Undo two habits of rattler: records for their owner alone, and the mark of a cache."""
    for file in (prefix / "conda-meta").glob("*.json"):
        file.chmod(0o644)
    (prefix / "CACHEDIR.TAG").unlink(missing_ok=True)


def _may_run(package: _Package) -> bool:
    return package.artifact.origin.get("link_scripts") is True


def _explained(said: Sequence[str], problems: Sequence[str]) -> MirrorError:
    """`said`: in rattler's words, which tell whether it is the machine that refuses."""
    kind = MachineError if any(_REFUSED.search(line) for line in said) else BundleError
    return kind("conda packages cannot be installed", problems=problems)
