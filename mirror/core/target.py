"""The machine that a bundle is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from mirror.core.artifact import Json

#: Platforms a target may name: the name in a manifest -> the conda subdir.
PLATFORMS: Mapping[str, str] = {
    "linux-x86_64": "linux-64",
    "linux-aarch64": "linux-aarch64",
    "win-amd64": "win-64",
    "macos-arm64": "osx-arm64",
}

#: No value is longer, in characters.
_MAX_TEXT = 300


@dataclass(frozen=True, slots=True)
class Target:
    """The machine that a bundle is for, and what it already has.

    python: "3.10", major and minor only.
    platform: a key of PLATFORMS.
    glibc: the newest glibc that wheels may need ("2.28"); empty off Linux.
    cuda, driver: versions as NVIDIA writes them, empty when not stated.
    gpus: architectures as the CUDA compiler names them ("sm_90").
    provided: packages the machine has, "name==version" each: resolved against, never carried.
    conda: conda packages of its environment that a layer over it sees, "name=version=build" each.
    """

    python: str
    platform: str
    glibc: str = ""
    cuda: str = ""
    driver: str = ""
    gpus: tuple[str, ...] = ()
    provided: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()

    @property
    def subdir(self) -> str:
        """The conda subdir of this platform."""
        return PLATFORMS[self.platform]

    def to_json(self) -> dict[str, Json]:
        """A table without the fields that say nothing."""
        return {
            f.name: list(value) if isinstance(value, tuple) else value
            for f in fields(self)
            if (value := getattr(self, f.name))
        }

    @classmethod
    def from_json(cls, table: Mapping[str, Json]) -> Target:
        """The inverse of `to_json`. Raises ValueError for any other shape."""
        known = {f.name for f in fields(cls)}
        if extra := sorted(set(table) - known):
            raise ValueError(f"target has an unknown key: {extra[0]:.80}")
        values: dict[str, str | tuple[str, ...]] = {}
        for key, value in table.items():
            if key in ("gpus", "provided", "conda"):
                if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                    raise ValueError(f"target.{key} is not a list of text")
                if not all(_plain(str(v)) for v in value):
                    raise ValueError(f"target.{key} has odd characters, or is too long")
                values[key] = tuple(str(v) for v in value)
                if key == "conda" and any(str(v).count("=") != 2 for v in value):
                    raise ValueError("target.conda has what is not NAME=VERSION=BUILD")
            elif isinstance(value, str):
                if not _plain(value):
                    raise ValueError(f"target.{key} has odd characters, or is too long")
                values[key] = value
            else:
                raise ValueError(f"target.{key} is not text")
        if not values.get("python") or values.get("platform") not in PLATFORMS:
            raise ValueError("target lacks python or names an unknown platform")
        return cls(**values)  # type: ignore[arg-type]

    def __str__(self) -> str:
        parts = [f"Python {self.python}", self.platform]
        parts += [f"glibc {self.glibc}"] if self.glibc else []
        parts += [f"CUDA {self.cuda}"] if self.cuda else []
        parts += [" ".join(self.gpus)] if self.gpus else []
        return ", ".join(parts)


def _plain(text: str) -> bool:
    """Whether it may be printed as it is: people read it before they trust the bundle."""
    return len(text) <= _MAX_TEXT and text.isprintable()
