"""What a manifest's conda section asks for, its environment file included."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.core.manifest import CondaSection
from mirror.core.requirements import environment, text
from mirror.core.requirements.environment import Environment
from mirror.core.requirements.values import Line, Mistake
from mirror.core.target import PLATFORMS
from mirror.ecosystems.conda import bridge
from mirror.ecosystems.conda.solving.channels import Channel, parse
from mirror.ecosystems.source import Context
from mirror.errors import UsageError

if TYPE_CHECKING:
    import rattler

_VARIABLE = re.compile(r"\$\{\w+\}")
_FILE = re.compile(r"(?!.*::)[^\[\]]+\.(?:conda|tar\.bz2)")
_SUBDIRS = {*PLATFORMS.values(), "noarch"}


@dataclass(frozen=True, slots=True)
class Spec:
    """A match spec, and where its package has to come from.

    channel: name of one; None: any. subdir: one of that channel's; None: any.
    """

    text: str
    where: str
    match: rattler.MatchSpec
    channel: str | None = None
    subdir: str | None = None

    @property
    def name(self) -> str:
        """The package's name, in normal form."""
        return str(self.match.name.normalized)


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A package on this machine; it comes before all channels.

    text: its path as it is written, with / always.
    """

    text: str
    where: str
    path: Path
    record: rattler.RepoDataRecord


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for, environment file and all.

    channels: in the order of their priority. files: each is asked for by one of the specs.
    notes: what a person should be told. digests: sha256 of every file that was read, by its path.
    """

    channels: Sequence[Channel]
    specs: Sequence[Spec]
    files: Sequence[PackageFile] = ()
    notes: Sequence[str] = ()
    digests: Mapping[str, str] = field(default_factory=dict)


def read(section: CondaSection, context: Context) -> Asked:
    """All that the section asks for. Raises UsageError that names every mistake with its place."""
    reader = _Reader(context)
    stated = reader.environment(section.environment)
    listed = _lines(section.channels, "conda.channels")
    reader.take_channels([*stated.channels, *listed], section.environment or "conda.channels")
    for package in stated.packages:
        if package.subdirs is None or context.target.subdir in package.subdirs:
            reader.take(Line(package.text, package.where))
        else:
            reader.notes.append(
                f"{package.where}: {text.quoted(package.text)} is left out: its comment says that "
                f"it is not for {context.target.platform}"
            )
    for line in _lines(section.packages, "conda.packages"):
        reader.take(line)
    return reader.asked()


def has_pip_part(file: Path) -> bool:
    """Whether an environment file has lines for pip; not when it cannot be read either."""
    try:
        found = environment.parse(text.decode(file.read_bytes()), file.name)
    except (OSError, UnicodeError, LookupError):
        return False
    return bool(found.pip)


class _Reader:
    def __init__(self, context: Context) -> None:
        self.notes: list[str] = []
        self._context = context
        self._channels: list[Channel] = []
        self._specs: list[Spec] = []
        self._files: list[PackageFile] = []
        self._digests: dict[str, str] = {}
        self._mistakes: list[Mistake] = []

    def environment(self, file: str | None) -> Environment:
        """What an environment file states; nothing where none is named."""
        if file is None:
            return Environment()
        name = Path(file).as_posix()
        try:
            data = (self._context.folder / file).read_bytes()
            found = environment.parse(text.decode(data), name)
        except OSError as error:
            found = Environment(mistakes=(Mistake(f"cannot be read: {error.strerror}", name),))
        except (UnicodeError, LookupError):
            found = Environment(mistakes=(Mistake("is no text in UTF-8", name),))
        else:
            self._digests[name] = hashlib.sha256(data).hexdigest()
        self._mistakes += found.mistakes
        self.notes += map(str, found.notes)
        return found

    def take_channels(self, lines: Sequence[Line], where: str) -> None:
        """The channels of all these lines. `where`: the place to name when there is none."""
        self._channels, mistakes = parse(lines, self._context.folder)
        self._mistakes += mistakes
        if not self._channels and not self._mistakes:
            self._mistakes.append(Mistake("no channel is listed", where))

    def take(self, line: Line) -> None:
        """What one line of packages asks for."""
        try:
            if variable := _VARIABLE.search(line.text):
                raise ValueError(
                    f"{variable[0]} is filled in for channels alone: else the lock would depend on "
                    "the environment of whoever builds"
                )
            if _FILE.fullmatch(line.text) and "://" not in line.text:
                self._take_file(line)
            else:
                self._specs.append(self._spec(line))
        except ValueError as error:
            self._mistakes.append(Mistake(f"{text.quoted(line.text)}: {error}", line.where))

    def asked(self) -> Asked:
        """Everything taken. Raises UsageError with all mistakes among it."""
        if self._mistakes:
            raise UsageError(
                "the conda packages cannot be solved as they are asked for",
                problems=dict.fromkeys(map(str, self._mistakes)),
                hint="docs/requirements.md says what may stand there.",
            )
        return Asked(self._channels, self._specs, self._files, self.notes, self._digests)

    def _spec(self, line: Line) -> Spec:
        prefix, separator, rest = line.text.rpartition("::")
        if "[" in prefix:  # the :: stands inside brackets
            prefix, separator, rest = "", "", line.text
        match = match_spec(rest.strip())
        if not separator:
            return Spec(line.text, line.where, match)
        channel, subdir = self._channel(prefix.strip(), line)
        return Spec(line.text, line.where, match, channel.name, subdir)

    def _channel(self, prefix: str, line: Line) -> tuple[Channel, str | None]:
        """The channel, and its subdir, that stand before `::`; it may be listed nowhere else."""
        above, _, last = prefix.rpartition("/")
        ways = [(prefix, None), *([(above, last)] if last in _SUBDIRS and above else [])]
        for called, subdir in ways:
            for channel in self._channels:
                if called.rstrip("/") in (channel.name, channel.base.rstrip("/")):
                    return channel, subdir
        called, subdir = ways[-1]
        found, mistakes = parse([Line(called, line.where)], self._context.folder)
        if mistakes:
            raise ValueError(mistakes[0].text)
        self._channels += found
        self.notes.append(
            f"{line.where}: the channel {found[0].name} is listed nowhere: it comes last"
        )
        return found[0], subdir

    def _take_file(self, line: Line) -> None:
        import rattler

        path = self._context.folder / line.text
        if not path.is_file():
            raise ValueError(f"there is no file {path}")
        try:
            record = bridge.run(rattler.RepoDataRecord.from_package_archive(path))
        except bridge.RattlerError as error:
            raise ValueError(f"it is no conda package: {error.lines[0]}") from None
        target, name = self._context.target, record.name.normalized
        if record.subdir not in (target.subdir, "noarch"):
            raise ValueError(f"it is for {record.subdir}, the target is {target.subdir}")
        if name in (file.record.name.normalized for file in self._files):
            raise ValueError(f"a second file of {name}: keep one")
        ending = ".conda" if path.suffix == ".conda" else ".tar.bz2"
        record.file_name = f"{name}-{record.version}-{record.build}{ending}"
        file = PackageFile(Path(line.text).as_posix(), line.where, path, record)
        self._files.append(file)
        self._digests[file.text] = self._context.hashes.of(path)[1]
        self._specs.append(Spec(line.text, line.where, match_spec(name)))


def _lines(items: Sequence[str], key: str) -> list[Line]:
    return [Line(item.strip(), f"{key}.{number}") for number, item in enumerate(items)]


def match_spec(spec: str) -> rattler.MatchSpec:
    """The match spec that a text spells. Raises ValueError when it spells none that can be kept."""
    from rattler import MatchSpec
    from rattler.exceptions import InvalidMatchSpecError

    if "://" in spec:
        raise ValueError("a package is named NAME=VERSION=BUILD, and its channel under channels")
    try:
        match = MatchSpec(spec)
    except InvalidMatchSpecError as error:
        raise ValueError(f"it is no match spec: {str(error).splitlines()[0]}") from None
    if match.channel is not None:
        raise ValueError("the channel is written in front: CHANNEL::NAME")
    return match
