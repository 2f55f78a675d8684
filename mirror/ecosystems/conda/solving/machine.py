"""The packages that stand for the machine in a solve: virtual ones, and those that it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror.core.compat import version as numbers
from mirror.core.cuda_tables import DRIVERS
from mirror.core.target import Target

if TYPE_CHECKING:
    import rattler

#: The CPU that a platform promises, as archspec names it. Builds for newer ones (x86_64_v3) are
#: never taken: nobody has said that the target's CPU is one of them.
_ARCHSPEC = {
    "linux-x86_64": "x86_64",
    "linux-aarch64": "aarch64",
    "win-amd64": "x86_64",
    "macos-arm64": "m1",
}


@dataclass(frozen=True, slots=True)
class There:
    """A package that is there before anything is installed."""

    name: str
    version: str
    build: str = "0"

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def for_rattler(self) -> rattler.GenericVirtualPackage:
        """For a solve: there, without dependencies, and never part of the answer."""
        import rattler

        return rattler.GenericVirtualPackage(
            rattler.PackageName(self.name),
            rattler.Version(self.version),
            rattler.BuildString.new_unchecked(self.build),
        )


def virtual_packages(target: Target) -> list[There]:
    """What stands for the machine itself.

    From the target alone. Where it does not say, the oldest that such a target can have: Linux 4.18
    is the kernel of the oldest system with glibc 2.28, Linux 3.10 of that with glibc 2.17.
    """
    found = [There("__archspec", "1", _ARCHSPEC[target.platform])]
    if target.platform.startswith("linux"):
        glibc = target.glibc or "2.17"
        kernel = "3.10" if numbers(glibc) < (2, 28) else "4.18"
        found += [There("__unix", "0"), There("__linux", kernel), There("__glibc", glibc)]
    elif target.platform.startswith("macos"):
        found += [There("__unix", "0"), There("__osx", "11.0")]
    else:
        found += [There("__win", "0")]
    if cuda := target.cuda or _cuda_of_driver(target):
        found.append(There("__cuda", cuda))
    if target.gpus:
        found.append(There("__cuda_arch", min(map(_capability, target.gpus), key=numbers)))
    return found


def provided(target: Target, carried: Iterable[str] = ()) -> list[There]:
    """The conda packages that the target has, but for those that are carried all the same."""
    left_out = set(carried)
    found = [There(*item.split("=")) for item in target.conda]
    return [there for there in found if there.name not in left_out]


def _cuda_of_driver(target: Target) -> str:
    """The CUDA that the driver runs, by minor-version compatibility: its major alone is certain."""
    table = DRIVERS.get(target.platform.partition("-")[0], {})
    driven = [
        major
        for major, oldest in table.items()
        if target.driver and numbers(target.driver) >= numbers(oldest)
    ]
    return str(max(driven)) if driven else ""


def _capability(gpu: str) -> str:
    """sm_90 -> 9.0, sm_120 -> 12.0, sm_90a -> 9.0"""
    digits = gpu.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    return f"{digits[:-1]}.{digits[-1]}"
