"""Solving for a machine that is not this one, with rattler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from mirror.core.artifact import Artifact
from mirror.core.target import Target
from mirror.ecosystems.conda import bridge
from mirror.ecosystems.conda.channels import Channel
from mirror.ecosystems.conda.records import record
from mirror.errors import DownloadError, MirrorError, ResolutionError, UsageError

if TYPE_CHECKING:
    import rattler

#: The CPU that a platform promises, as archspec names it.
_ARCHSPEC = {
    "linux-x86_64": "x86_64",
    "linux-aarch64": "aarch64",
    "win-amd64": "x86_64",
    "macos-arm64": "m1",
}


def virtual_packages(target: Target) -> dict[str, tuple[str, str]]:
    """What stands for the machine itself in a solve: name -> version and build string.

    From the target alone. Where it does not say, the oldest that such a target can have: Linux 4.18
    is the kernel of the oldest system with glibc 2.28, Linux 3.10 of that with glibc 2.17.
    """
    found = {"__archspec": ("1", _ARCHSPEC[target.platform])}
    if target.platform.startswith("linux"):
        glibc = target.glibc or "2.17"
        old = tuple(int(part) for part in glibc.split(".")) < (2, 28)
        found |= {"__unix": ("0", "0"), "__linux": ("3.10" if old else "4.18", "0")}
        found["__glibc"] = (glibc, "0")
    elif target.platform.startswith("macos"):
        found |= {"__unix": ("0", "0"), "__osx": ("11.0", "0")}
    else:
        found["__win"] = ("0", "0")
    if target.cuda:
        found["__cuda"] = (target.cuda, "0")
    if target.gpus:
        found["__cuda_arch"] = (min(map(_capability, target.gpus), key=float), "0")
    return found


def _capability(gpu: str) -> str:
    """sm_90 -> 9.0, sm_120 -> 12.0, sm_90a -> 9.0"""
    digits = gpu.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    return f"{digits[:-1]}.{digits[-1]}"


def parse_specs(texts: Sequence[str]) -> list[rattler.MatchSpec]:
    """The match specs of a manifest. Raises UsageError that names all that are none."""
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    specs, problems = [], []
    for text in texts:
        try:
            specs.append(MatchSpec(text))
        except InvalidMatchSpecError as error:
            problems.append(f"{text}: {error}")
    if problems:
        raise UsageError(
            "conda.packages has what is no match spec",
            problems=problems,
            hint="They look like: tmux, python=3.10, numpy>=1.26,<2",
        )
    return specs


def without_channel(spec: rattler.MatchSpec) -> rattler.MatchSpec:
    """The same spec for any channel: conda-forge::tmux>=3 -> tmux>=3"""
    from rattler import MatchSpec

    return MatchSpec(str(spec).partition("::")[2]) if spec.channel else spec


def base_url(channel: Channel) -> str:
    """The URL that a channel's SUBDIR/FILE is under; ends with a slash."""
    import rattler

    return rattler.Channel(channel.location).base_url


class Solver:
    """Solves against some channels for one target.

    cache: a folder for what is downloaded of their repodata; channels in folders need none, and
        with those alone no connection is opened.
    """

    def __init__(self, channels: Sequence[Channel], target: Target, cache: Path) -> None:
        import rattler
        from rattler.networking.middleware import AddHeadersMiddleware, RetryMiddleware

        private = [(urlsplit(c.location), c.headers) for c in channels if c.headers]

        def headers(host: str, path: str) -> dict[str, str] | None:
            for url, secret in private:
                if host == url.hostname and path.startswith(url.path):
                    return dict(secret)
            return None

        self.target = target
        self._channels = [(channel, rattler.Channel(channel.location)) for channel in channels]
        self._platforms = [rattler.Subdir(name) for name in (target.subdir, "noarch")]
        self._gateway = rattler.Gateway(
            cache_dir=cache,
            client=rattler.Client([RetryMiddleware(3), AddHeadersMiddleware(headers)]),
        )

    def channel_of(self, record: rattler.RepoDataRecord) -> Channel:
        """The channel that a record was found in."""
        return next(c for c, known in self._channels if known.base_url == record.channel)

    def solve(
        self, specs: Sequence[rattler.MatchSpec], kept: Sequence[Artifact] = ()
    ) -> list[rattler.RepoDataRecord]:
        """The records that satisfy `specs` together, with strict priority of channels.

        kept: packages that are preferred where they still fit and their channels still have them.
        A Python is taken only in the target's version.
        Raises ResolutionError that explains every spec which cannot be satisfied, and DownloadError
        that names every channel which cannot be read.
        """
        try:
            return bridge.run(self._solve(specs, kept))
        except bridge.RattlerError as error:
            if error.kind == "SolverError":
                raise self._unsatisfied(specs, error) from None
            raise self._unreadable(specs, error) from None

    async def _solve(
        self,
        specs: Sequence[rattler.MatchSpec],
        kept: Sequence[Artifact],
        constraints: Sequence[rattler.MatchSpec] = (),
    ) -> list[rattler.RepoDataRecord]:
        import rattler

        return await rattler.solve(
            [known for _, known in self._channels],
            specs,
            gateway=self._gateway,
            platforms=self._platforms,
            locked_packages=await self._locked(kept) if kept else None,
            virtual_packages=[
                rattler.GenericVirtualPackage(
                    rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build)
                )
                for name, (version, build) in virtual_packages(self.target).items()
            ],
            channel_priority=rattler.ChannelPriority.Strict,
            constraints=[*constraints, f"python {self.target.python}.*"],
            channel_relations="disabled",
        )

    async def _locked(self, kept: Sequence[Artifact]) -> list[rattler.RepoDataRecord]:
        """The kept packages that the channels still have, exactly as they were."""
        wanted = {(a.text("subdir"), a.text("file"), a.sha256) for a in kept}
        found = await self._gateway.query(
            [known for _, known in self._channels],
            self._platforms,
            sorted({str(record(artifact)["name"]) for artifact in kept}),
            recursive=False,
            channel_relations="disabled",
        )
        return [
            known
            for records in found
            for known in records
            if known.sha256 and (known.subdir, known.file_name, known.sha256.hex()) in wanted
        ]

    def _unsatisfied(
        self, specs: Sequence[rattler.MatchSpec], error: bridge.RattlerError
    ) -> MirrorError:
        """rattler stops at the first spec that fails alone; a person wants to see them all."""
        from rattler import MatchSpec

        problems = [line for spec in specs for line in self._failure([spec])]
        if not problems:
            # Each can be had, so they exclude each other. Asked for by their names alone, with the
            # specs as constraints, the candidates that a spec rules out stand in the explanation.
            names = [MatchSpec(spec.name.normalized) for spec in specs]
            problems = self._failure(names, specs)
        machine = virtual_packages(self.target)
        given = ", ".join(f"{name} {version}" for name, (version, _) in machine.items())
        return ResolutionError(
            f"the conda packages cannot be had together for {self.target}",
            problems=problems or _plain(error),
            hint=f"The target has Python {self.target.python} and {given}. Names that start"
            " with __ stand for the machine and follow from `target:`.",
        )

    def _failure(
        self, specs: Sequence[rattler.MatchSpec], constraints: Sequence[rattler.MatchSpec] = ()
    ) -> list[str]:
        try:
            bridge.run(self._solve(specs, (), constraints))
        except bridge.RattlerError as error:
            return _plain(error)
        return []

    def _unreadable(
        self, specs: Sequence[rattler.MatchSpec], error: bridge.RattlerError
    ) -> MirrorError:
        elsewhere = [channel.name for channel, _ in self._channels if not channel.folder]
        said = f"{', '.join(elsewhere)}: {' '.join(error.lines)}"
        return DownloadError(
            "conda channels cannot be read", problems=list(self._broken(specs)) or [said]
        )

    def _broken(self, specs: Sequence[rattler.MatchSpec]) -> Iterator[str]:
        """rattler does not say which file it could not read: ask for each folder's alone."""
        for channel, known in self._channels:
            for subdir in self._platforms if channel.folder else ():
                query = self._gateway.query([known], [subdir], specs, channel_relations="disabled")
                try:
                    bridge.run(query)
                except bridge.RattlerError as error:
                    yield f"{channel.folder}/{subdir}/repodata.json: {' '.join(error.lines)}"


def _plain(error: bridge.RattlerError) -> list[str]:
    """rattler's words without their preamble."""
    return [line.removeprefix("Cannot solve the request because of: ") for line in error.lines]
