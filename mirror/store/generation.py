"""One installed state: a folder, and where each thing in it is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mirror.core import index as indexes
from mirror.core.index import Index
from mirror.errors import BundleError
from mirror.store import atomic, seal

#: Beside a generation's index: the signatures over it.
SIGNATURES = "index.json.sig"


@dataclass(frozen=True, slots=True)
class Generation:
    """One installed state: a folder, and where each thing in it is."""

    path: Path

    @property
    def number(self) -> int:
        """Counts up from 1 in a root; never used twice while it exists."""
        return int(self.path.name)

    @property
    def index_file(self) -> Path:
        """Written last: its presence says that the generation is complete."""
        return self.path / "index.json"

    @property
    def env(self) -> Path:
        """The environment: a virtual environment, or a conda prefix, or both in one."""
        return self.path / "env"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.env / "bin" / "python"

    @property
    def wheels(self) -> Path:
        """A find-links folder."""
        return self.path / "wheels"

    @property
    def conda(self) -> Path:
        """An offline conda channel."""
        return self.path / "conda"

    @property
    def hub(self) -> Path:
        """A Hugging Face cache (HF_HUB_CACHE)."""
        return self.path / "hub"

    @property
    def models(self) -> Path:
        """ORG/NAME, and ORG/NAME@REVISION -> the snapshot of that revision."""
        return self.path / "models"

    @property
    def datasets(self) -> Path:
        """As `models`."""
        return self.path / "datasets"

    @property
    def spaces(self) -> Path:
        """As `models`."""
        return self.path / "spaces"

    @property
    def files(self) -> Path:
        """The manifest's plain files."""
        return self.path / "files"

    @property
    def tool(self) -> Path:
        """mirror itself: bin/mirror and what it imports."""
        return self.path / "tool"

    @property
    def launch_file(self) -> Path:
        """The launch settings that verify found, for `mirror run`."""
        return self.path / "launch.json"

    def keep_signatures(self, signatures: bytes) -> None:
        """Keep what its bundle was signed with, so that it can be checked again; before `finish`.

        They are over the exact bytes of `index.json`.
        """
        if signatures:
            atomic.write(self.path / SIGNATURES, signatures, 0o444)

    @property
    def seal_file(self) -> Path:
        """What everything in it was when it was made (mirror/store/seal.py)."""
        return self.path / seal.NAME

    @property
    def pinned(self) -> bool:
        """Whether `mirror gc` keeps it for good."""
        return self._pin.is_file()

    @property
    def _pin(self) -> Path:
        # Beside the generation, which never changes.
        return self.path.with_suffix(".pin")

    @property
    def unused(self) -> Path:
        """A file that is there until the generation has been put in use for the first time."""
        return self.path.with_suffix(".new")

    def pin(self, *, wanted: bool) -> None:
        """Have `mirror gc` keep it for good, or no longer; durable."""
        if wanted:
            atomic.write(self._pin, b"")
        else:
            self._pin.unlink(missing_ok=True)
            atomic.sync_folder(self.path.parent)

    def index(self) -> Index:
        """What is installed here. Raises BundleError when the record is missing or changed."""
        try:
            data = self.index_file.read_bytes()
        except OSError as error:
            raise BundleError(f"{self.index_file} cannot be read: {error.strerror}") from None
        try:
            return indexes.parse(data)
        except BundleError as error:
            raise BundleError(
                f"{self.index_file}: {error.message}",
                problems=error.problems,
                hint="Install the bundle again; older generations are in `mirror list`.",
            ) from None
