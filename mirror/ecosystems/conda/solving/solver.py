"""Solving for a machine that is not this one, with rattler."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror.core.artifact import Artifact
from mirror.core.target import Target
from mirror.ecosystems.conda import bridge
from mirror.ecosystems.conda.records import record
from mirror.ecosystems.conda.solving.asked import Spec
from mirror.ecosystems.conda.solving.machine import There, provided, virtual_packages
from mirror.ecosystems.conda.solving.reachable import Reachable, Selection, reachable
from mirror.ecosystems.conda.solving.subdirs import Subdir
from mirror.errors import MirrorError, ResolutionError

if TYPE_CHECKING:
    import rattler

#: So many versions or builds are named of those that there are.
_NAMED = 5


def solve(
    specs: Sequence[Spec],
    channels: AbstractContextManager[Sequence[Subdir]],
    target: Target,
    kept: Sequence[Artifact] = (),
    carried: Collection[str] = (),
) -> list[rattler.RepoDataRecord]:
    """The records that satisfy `specs` together, with strict priority of channels.

    channels: their subdirs, in the order of priority. kept: packages that are preferred where they
    still fit and their channels still have them. carried: names of packages that the target has and
    that are carried all the same. A Python is taken only in the target's version.
    Raises ResolutionError that explains every spec which cannot be satisfied, and DownloadError
    for malformed records.
    """
    there = provided(target, carried)
    selection = Selection(
        bound={s.name: (s.channel, s.subdir) for s in specs if s.channel is not None},
        without=frozenset(item.name for item in there),
        kept={(a.text("subdir"), a.text("file")) for a in kept},
    )
    with reachable(channels, [spec.name for spec in specs], selection) as found:
        problem = _Problem(specs, found, target, there, _still(kept, found.kept))
        try:
            return problem.solve([spec.match for spec in specs], locked=True)
        except bridge.RattlerError as error:
            raise problem.explained(error) from None


def _still(
    kept: Sequence[Artifact], found: Sequence[rattler.RepoDataRecord]
) -> list[rattler.RepoDataRecord]:
    """Those of the records whose bytes are those of the kept packages, as far as they say."""
    known = {(a.text("subdir"), a.text("file")): a for a in kept}
    return [r for r in found if _same_bytes(known[r.subdir, r.file_name], r)]


def _same_bytes(artifact: Artifact, now: rattler.RepoDataRecord) -> bool:
    if now.sha256:
        return now.sha256.hex() == artifact.sha256
    return not now.md5 or now.md5.hex() == record(artifact).get("md5")


@dataclass(frozen=True, slots=True)
class _Problem:
    """One solve, and what can be said of it when it fails."""

    specs: Sequence[Spec]
    found: Reachable
    target: Target
    there: Sequence[There]
    kept: Sequence[rattler.RepoDataRecord]

    def solve(
        self,
        specs: Sequence[rattler.MatchSpec],
        constraints: Sequence[rattler.MatchSpec] = (),
        *,
        locked: bool = False,
    ) -> list[rattler.RepoDataRecord]:
        """The records that satisfy these specs. Raises RattlerError."""
        import rattler

        machine = [*virtual_packages(self.target), *self.there]
        return bridge.run(
            rattler.solve_with_sparse_repodata(
                specs,
                self.found.repodata,
                locked_packages=self.kept if locked else None,
                virtual_packages=[item.for_rattler for item in machine],
                channel_priority=rattler.ChannelPriority.Strict,
                constraints=[*constraints, f"python {self.target.python}.*"],
            )
        )

    def explained(self, error: bridge.RattlerError) -> MirrorError:
        """rattler stops at the first spec that fails alone; a person wants to see them all."""
        from rattler import MatchSpec

        problems = [line for spec in self.specs for line in self._failure_of(spec)]
        if not problems:
            # Each can be had, so they exclude each other. Asked for by their names alone, with the
            # specs as constraints, the candidates that a spec rules out stand in the explanation.
            names = [MatchSpec(spec.name) for spec in self.specs]
            problems = self._failure(names, [spec.match for spec in self.specs])
        problems = problems or _plain(error)
        given = ", ".join(map(str, virtual_packages(self.target)))
        return ResolutionError(
            f"the conda packages cannot be had together for {self.target}",
            problems=[*problems, *self._provided(problems)],
            hint=f"The target has Python {self.target.python} and {given}. Names that start"
            f" with __ stand for the machine and follow from `target:`.{self._of_builds()}",
        )

    def _failure_of(self, spec: Spec) -> list[str]:
        """Why a spec cannot be satisfied even alone; nothing when it can."""
        if not spec.name.startswith("__") and (reason := self._lacking(spec)):
            return [f"{spec.where}: {spec.text}: {reason}"]
        first, *more = self._failure([spec.match]) or [""]
        return [f"{spec.where}: {spec.text}: {first}", *more] if first else []

    def _lacking(self, spec: Spec) -> str:
        """Why no record matches a spec; empty when one does."""
        if there := next((item for item in self.there if item.name == spec.name), None):
            return "" if self._can_be(there, spec) else f"the target has {there} {there.build}"
        records = self.found.named(spec.name)
        if any(spec.match.matches(known) for known in records):
            return ""
        if not records:
            where = f"the channel {spec.channel} has" if spec.channel else "the channels have"
            return f"{where} no such package"
        of_version = [r for r in records if _is_of_version(spec.match, r)]
        if not of_version:
            versions = sorted({known.version for known in records})
            return f"the channels have no such version, but {_some(map(str, versions))}"
        builds = sorted({f"{known.build} ({known.subdir})" for known in of_version})
        return f"the channels have no such build of this version, but {_some(builds)}"

    def _can_be(self, there: There, spec: Spec) -> bool:
        try:
            self.solve([spec.match])
        except bridge.RattlerError:
            return False
        return True

    def _failure(
        self, specs: Sequence[rattler.MatchSpec], constraints: Sequence[rattler.MatchSpec] = ()
    ) -> list[str]:
        try:
            self.solve(specs, constraints)
        except bridge.RattlerError as error:
            return _plain(error)
        return []

    def _provided(self, problems: Sequence[str]) -> Iterator[str]:
        """The packages of the target that the problems speak of."""
        said = " ".join(problems)
        words = set(said.replace(",", " ").split())
        for item in self.there:
            if item.name in words and f"the target has {item}" not in said:
                yield f"The target has {item} {item.build}, and it is not replaced."

    def _of_builds(self) -> str:
        if not any(spec.match.build and spec.match.version for spec in self.specs):
            return ""
        return (
            " A build belongs to one platform: `conda env export --no-builds` writes a file without"
            " them, --from-history one with what was once asked for."
        )


def _is_of_version(spec: rattler.MatchSpec, known: rattler.RepoDataRecord) -> bool:
    from rattler import MatchSpec

    version = f" {spec.version}" if spec.version else ""
    return MatchSpec(f"{spec.name.normalized}{version}").matches(known)


def _some(items: Iterable[str]) -> str:
    """The last few of them."""
    every = list(items)
    return ", ".join([*(["..."] if every[:-_NAMED] else []), *every[-_NAMED:]])


def _plain(error: bridge.RattlerError) -> list[str]:
    """rattler's words without their preamble."""
    return [line.removeprefix("Cannot solve the request because of: ") for line in error.lines]
