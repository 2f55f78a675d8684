"""Whether wheels can work with a target's CUDA, driver and GPUs, told before anything is shipped.

What is certain not to work is a problem; what this table does not know, or what works with a
limit, is a warning. Each says what, why, and what to write instead. The facts are in `cuda_tables`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from mirror.core.compat import version as numbers
from mirror.core.cuda_tables import (
    ARCHITECTURES,
    ARCHITECTURES_FOR_A_WHILE,
    DATE,
    DRIVERS,
    GPU_DRIVERS,
    NCCL_WITHOUT,
    ONE_FILE,
    TORCH,
)
from mirror.core.target import Target

#: Name, version and file name of a wheel.
Wheel: TypeAlias = tuple[str, str, str]

# "+cu128", "+pt24cu124", "+cuda11.cudnn86": two digits of CUDA's major, one of its minor.
_LABEL = re.compile(r"cu(?:da)?(\d\d)(?:\.?(\d))?(?!\d)")
# "nvidia-nccl-cu12", "cupy-cuda12x", "jax-cuda12-plugin": the major alone.
_SUFFIX = re.compile(r"-cu(?:da)?(\d\d)x?(?=-|$)")
# "+cu12torch2.8cxx11abiTRUE": an extension compiled against that torch.
_COMPILED_FOR = re.compile(r"torch(\d+\.\d+)")
_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu\d\d)?$")


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found, a line each. problems: cannot work. warnings: to be read, stop nothing."""

    problems: tuple[str, ...]
    warnings: tuple[str, ...]


def check(target: Target, wheels: Sequence[Wheel]) -> Findings:
    """Hold a set of wheels, and what the target provides, against its CUDA, driver and GPUs.

    What the target does not state is not checked: without driver and cuda no CUDA is too new.
    """
    if target.platform.startswith("macos"):
        return Findings((), ())
    ours = _with_runtime([_package(target, *wheel) for wheel in wheels])
    theirs = [_package(target, *item.partition("==")[::2], "") for item in target.provided]
    found = [
        *_too_new(target, ours),
        *_gpus(target, ours),
        *_without_cuda(target, ours),
        *_nccl(target, ours + theirs),
        *_overwritten(ours, theirs),
        *_compiled_for_another(ours, theirs),
    ]
    return Findings(
        problems=tuple(finding.text for finding in found if finding.fatal),
        warnings=tuple(finding.text for finding in found if not finding.fatal),
    )


def label(cuda: str) -> str:
    """ "12.8" and "12.8.1" -> "cu128": how indexes and local versions name a CUDA."""
    major, minor = (*numbers(cuda), 0)[:2]
    return f"cu{major}{minor}"


def torch_for(cuda: str, platform: str) -> tuple[str, ...]:
    """Versions of torch built for exactly this CUDA on the default index, newest first."""
    wanted = numbers(cuda)[:2]
    table = TORCH.get(platform, {})
    return tuple(v for c, versions in table.items() if numbers(c) == wanted for v in versions[::-1])


@dataclass(frozen=True, slots=True)
class _Package:
    """A wheel, or what the target provides. cuda: (12, 8), (12,) or () when built without.

    known: whether this table knows its CUDA.
    """

    name: str
    version: str
    local: str
    cuda: tuple[int, ...]
    known: bool = True

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class _Finding(NamedTuple):
    fatal: bool
    text: str


_Found: TypeAlias = Iterator[_Finding]


def _package(target: Target, name: str, version: str, file: str) -> _Package:
    name = re.sub(r"[-_.]+", "-", name).lower()
    public, _, local = version.partition("+")
    # A wheel's file name may hold a local version that its metadata lacks.
    local = local or "-".join(file.split("-")[1:2]).partition("+")[2]
    cuda: tuple[int, ...] = ()
    known = True
    if match := _LABEL.search(local) or _SUFFIX.search(name):
        cuda = tuple(int(part) for part in match.groups() if part)
    if _RUNTIME.match(name):
        cuda = numbers(public)[:2]
    elif name == "torch" and not local and version:
        cuda, known = _of_default_torch(target, public)
    return _Package(name, version, local, cuda, known)


def _of_default_torch(target: Target, version: str) -> tuple[tuple[int, ...], bool]:
    for cuda, versions in TORCH.get(target.platform, {}).items():
        if version in versions:
            return numbers(cuda), True
    return (), any(version in v for table in TORCH.values() for v in table.values())


def _with_runtime(packages: list[_Package]) -> list[_Package]:
    """A torch that the tables do not know is built for the CUDA runtime that it brings along."""
    brought = next((p.cuda for p in packages if _RUNTIME.match(p.name)), ())
    return [p if p.known or not brought else replace(p, cuda=brought) for p in packages]


def _too_new(target: Target, packages: Sequence[_Package]) -> _Found:
    """CUDA newer than the driver runs, or than the target says it has."""
    have = numbers(target.cuda)[:2]
    for major in sorted({p.cuda[0] for p in packages if p.cuda}):
        of_major = [p for p in packages if p.cuda[:1] == (major,)]
        subject, newest = _subject(of_major), max(p.cuda for p in of_major)
        oldest = DRIVERS[_system(target)].get(major)
        needs = f"{subject} for CUDA {_dotted(newest)}"
        beyond = bool(have) and major > have[0]
        if oldest is None:
            if target.driver or beyond:
                yield _Finding(False, f"{needs}; which driver that needs is {_unknown()}")
        elif target.driver and numbers(target.driver) < numbers(oldest):
            yield _Finding(
                True,
                f"{needs}, which needs driver {oldest} or newer; the target's is "
                f"{target.driver}: {_way_out(target)}",
            )
        elif beyond and not target.driver:
            yield _Finding(
                True,
                f"{needs}, which needs driver {oldest} or newer; a machine of CUDA {target.cuda} "
                f"seldom has it: {_way_out(target)}; or, when it has, state target.driver",
            )
        elif beyond:
            yield _Finding(
                False, f"{needs}; the driver runs it, but target.cuda says {target.cuda}"
            )
        elif have and major == have[0] and newest > have:
            yield _Finding(
                False,
                f"{needs}, newer than the target's {target.cuda}: it runs by minor-version "
                "compatibility, but kernels that are compiled on the machine (PTX) may not",
            )


def _gpus(target: Target, packages: Sequence[_Package]) -> _Found:
    """GPUs for which torch holds no code, or which the driver does not know."""
    if any(p.cuda for p in packages) and target.driver:
        for gpu in target.gpus:
            oldest = GPU_DRIVERS.get(_capability(gpu) // 10)
            if oldest and numbers(target.driver) < numbers(oldest):
                yield _Finding(
                    True,
                    f"{gpu} is known to drivers from {oldest} on; the target's is "
                    f"{target.driver}: no wheel cures that, a newer driver does",
                )
    torch = next((p for p in packages if p.name == "torch"), None)
    if torch is None or not torch.cuda or not target.gpus:
        return
    built_for = _architectures(target, _dotted(torch.cuda), torch.version)
    if not built_for:
        yield _Finding(False, f"which GPUs torch {torch.version} has code for is {_unknown()}")
    elif lacking := [gpu for gpu in target.gpus if not runs(gpu, built_for)]:
        has = " ".join(f"sm_{number}" for number in built_for)
        yield _Finding(
            True,
            f"torch {torch.version} (CUDA {_dotted(torch.cuda)}) has no code for "
            f"{', '.join(lacking)}, only for {has}: {_way_out(target)}",
        )


def _without_cuda(target: Target, packages: Sequence[_Package]) -> _Found:
    """A torch that would leave the target's GPUs idle."""
    torch = next((p for p in packages if p.name == "torch"), None)
    if torch is None or torch.cuda or not (target.cuda or target.gpus):
        return
    if not torch.known:
        yield _Finding(False, f"which CUDA torch {torch.version} is built for is {_unknown()}")
    elif torch.local:
        yield _Finding(False, f"torch {torch.version} is built without CUDA; the target has it")
    else:
        yield _Finding(
            True,
            f"torch {torch.version} is built without CUDA on the default index for "
            f"{target.platform}, and the target has GPUs: {_way_out(target)}",
        )


def _nccl(target: Target, packages: Sequence[_Package]) -> _Found:
    """NCCL without code for the target's GPUs: it dies in the first collective of several GPUs."""
    for package in packages:
        if not re.fullmatch(r"nvidia-nccl-cu\d\d", package.name):
            continue
        lacks = NCCL_WITHOUT.get(package.version, ())
        gpus = [gpu for gpu in target.gpus if _capability(gpu) // 10 in lacks]
        if gpus:
            yield _Finding(
                True,
                f"{package} has no code for {', '.join(gpus)}, and no setting cures that (runs on "
                "several GPUs die of an illegal memory access): take a torch that brings another "
                f"NCCL (2.8 or newer); {package.version}.post1 has the code, for who may choose it",
            )


def _overwritten(ours: Sequence[_Package], theirs: Sequence[_Package]) -> _Found:
    """Two packages that bring one file: two NCCLs and their like."""
    torches = [p for p in theirs if p.name == "torch" and p.cuda]
    for library, file in ONE_FILE.items():
        pattern = re.compile(rf"nvidia-{library}-cu\d\d")
        shipped = [p for p in ours if pattern.fullmatch(p.name)]
        # A torch that is there has its libraries there, whether the target lists them or not.
        there = [p for p in theirs if pattern.fullmatch(p.name)] or torches
        if shipped and len({p.cuda[0] for p in [*shipped, *there]}) > 1:
            names = [*map(str, shipped), *(f"the provided {p}" for p in there)]
            yield _Finding(
                True,
                f"{' and '.join(names)} both bring {file}, and the one that is found first serves "
                "whoever wanted the other: keep to packages that are built for one CUDA",
            )


def _compiled_for_another(ours: Sequence[_Package], theirs: Sequence[_Package]) -> _Found:
    """Extensions whose label names another torch or another CUDA than they will meet."""
    torch = next((p for p in (*ours, *theirs) if p.name == "torch" and p.version), None)
    if torch is None:
        return
    for package in ours:
        against = _COMPILED_FOR.search(package.local)
        labelled = _LABEL.search(package.local) is not None
        if against and numbers(against[1]) != numbers(torch.version.partition("+")[0])[:2]:
            yield _Finding(
                True,
                f"{package} is compiled for torch {against[1]}, the set has torch {torch.version}: "
                f"take its wheel for that torch, or write torch=={against[1]}.*",
            )
        elif labelled and torch.cuda and package.cuda[0] != torch.cuda[0]:
            yield _Finding(
                package.name in ("torchvision", "torchaudio"),
                f"{package} is built for CUDA {_dotted(package.cuda)}, torch {torch.version} for "
                f"CUDA {_dotted(torch.cuda)}: take both from one index",
            )


def _way_out(target: Target) -> str:
    """Which torch would work there, in words that can be written into the manifest."""
    have = numbers(target.cuda)[:2]
    table = ARCHITECTURES.get(_table(target), {})
    driven = sorted(
        (cuda for cuda in table if _driverruns(target, cuda)),
        key=lambda cuda: (not have or numbers(cuda) <= have, numbers(cuda)),
    )
    labels = [label(cuda) for cuda in driven if _all_run(target, table[cuda])]
    versions = [
        version
        for cuda in driven
        for version in torch_for(cuda, target.platform)[:1]
        if _all_run(target, _architectures(target, cuda, version))
    ]
    ways = [f"take torch from an index of {name} builds (wheels.indexes)" for name in labels[-1:]]
    ways += [f"write torch=={version}" for version in versions[-1:]]
    if not ways and (target.driver or target.cuda):
        return f"with a newer driver, {_way_out(replace(target, driver='', cuda=''))}"
    return " or ".join(ways) or f"no torch of this table ({DATE}) has code for all its GPUs"


def _driverruns(target: Target, cuda: str) -> bool:
    major = numbers(cuda)[0]
    if target.driver:
        oldest = DRIVERS[_system(target)].get(major)
        return oldest is not None and numbers(target.driver) >= numbers(oldest)
    return not target.cuda or major <= numbers(target.cuda)[0]


def _architectures(target: Target, cuda: str, torch: str) -> tuple[int, ...]:
    table = ARCHITECTURES.get(_table(target), {})
    built_for = table.get(cuda, ())
    if built_for and cuda in ARCHITECTURES_FOR_A_WHILE and _table(target) == "linux-x86_64":
        extra, first, last = ARCHITECTURES_FOR_A_WHILE[cuda]
        if numbers(first) <= numbers(torch.partition("+")[0])[:2] <= numbers(last):
            built_for = (extra, *built_for)
    return built_for


def _table(target: Target) -> str:
    return "linux-x86_64" if target.platform == "win-amd64" else target.platform


def _system(target: Target) -> str:
    return target.platform.partition("-")[0]


def _all_run(target: Target, built_for: Sequence[int]) -> bool:
    return all(runs(gpu, built_for) for gpu in target.gpus)


def runs(gpu: str, built_for: Sequence[int]) -> bool:
    """A cubin runs on GPUs of the same major and of the same or a higher minor."""
    wanted = _capability(gpu)
    return any(a // 10 == wanted // 10 and a <= wanted for a in built_for)


def _capability(gpu: str) -> int:
    """ "sm_90a" -> 90"""
    return int(re.sub(r"\D", "", gpu))


def _subject(packages: Sequence[_Package]) -> str:
    """The packages in a few words: torch before others, NVIDIA's own libraries last."""
    order = sorted(packages, key=lambda p: (p.name != "torch", p.name.startswith("nvidia-")))
    own = [str(p) for p in order if not p.name.startswith("nvidia-")] or [str(order[0])]
    shown = own if len(own) <= 3 else [*own[:3], f"{len(own) - 3} more"]
    return f"{', '.join(shown)} {'is' if len(own) == 1 else 'are'} built"


def _dotted(cuda: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in cuda)


def _unknown() -> str:
    return f"not known to this table (of {DATE})"
