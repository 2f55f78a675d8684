"""The generation's environment: a virtual environment, in the conda prefix when there is one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror import machine
from mirror.core.artifact import Artifact
from mirror.core.compat import canonical_name, same_version
from mirror.core.secrets import without
from mirror.ecosystems.deploy import Site
from mirror.errors import MachineError, TargetError
from mirror.store.generation import Generation

_LAYER = "mirror-over.pth"


@dataclass(frozen=True, slots=True)
class Changes:
    """What installing a bundle into an existing environment does to it. Nothing is removed.

    added: "name version". changed: "name old -> new". broken: what is there and would not work any
    more, with the reason. before: all that was there, "name==version".
    """

    added: tuple[str, ...]
    changed: tuple[str, ...]
    broken: tuple[str, ...]
    before: tuple[str, ...]

    def lines(self) -> list[str]:
        """For people."""
        rows = [f"  add      {item}" for item in self.added]
        rows += [f"  change   {item}" for item in self.changed]
        return [*rows, "  remove   nothing"]


def changes(into: machine.Interpreter, artifacts: Sequence[Artifact]) -> Changes:
    """What these wheels, installed into an environment, would change there.

    into: its interpreter, asked for everything.
    """
    have = {canonical_name(name): version or "" for name, version in into.packages.items()}
    new = {canonical_name(a.text("name")): a.text("version") for a in artifacts if a.text("name")}
    return Changes(
        added=tuple(f"{name} {new[name]}" for name in sorted(new.keys() - have.keys())),
        changed=tuple(
            f"{name} {have[name]} -> {new[name]}"
            for name in sorted(new.keys() & have.keys())
            if have[name] != new[name]
        ),
        broken=tuple(_broken(into, have, new)),
        before=tuple(sorted(f"{name}=={version}" for name, version in have.items())),
    )


def _broken(
    into: machine.Interpreter, have: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[str]:
    """Packages that stay, and that need another version of one which is changed."""
    from packaging.requirements import InvalidRequirement, Requirement

    python = {"python_version": into.version, "python_full_version": f"{into.version}.0"}
    for package, lines in sorted(into.requires.items()):
        if canonical_name(package) in new:
            continue
        for line in lines:
            try:
                needed = Requirement(line)
            except InvalidRequirement:
                continue
            name = canonical_name(needed.name)
            if needed.marker and not needed.marker.evaluate({**python, "extra": ""}):
                continue
            if name in have and name in new and have[name] != new[name]:
                fine = needed.specifier.contains(new[name], prereleases=True)
                if not fine and needed.specifier.contains(have[name], prereleases=True):
                    version = have[canonical_name(package)]
                    yield f"{package} {version} needs {needed}; the bundle brings {new[name]}"


def adopt(generation: Generation, into: Path) -> None:
    """Let the generation's environment be an existing one."""
    generation.env.symlink_to(into.absolute(), target_is_directory=True)


def adopted(generation: Generation) -> Path | None:
    """The existing environment that a generation was installed into, None when there is none."""
    return generation.env.readlink() if generation.env.is_symlink() else None


def choose_over(provided: Sequence[str], asked: Path | None) -> machine.Interpreter | None:
    """The environment that has what the target provides: the one asked for, or one at hand.

    Looked at, when none is asked for: the environment that is active ($VIRTUAL_ENV,
    $CONDA_PREFIX), then the one that mirror runs in. Raises TargetError that names what each lacks.
    """
    if asked is None and not provided:
        return None
    names = [item.partition("==")[0] for item in provided]
    refused = []
    for prefix in [asked] if asked else _environments_at_hand():
        found = machine.ask(machine.interpreter_of(prefix), names)
        wrong = list(_missing(provided, found))
        if not wrong:
            return found
        more = [f"and {len(wrong) - 10} more"] if wrong[10:] else []
        refused.append(f"{prefix}: {'; '.join([*wrong[:10], *more])}")
    expected = ", ".join(provided[:5]) + (f" and {len(provided) - 5} more" if provided[5:] else "")
    raise TargetError(
        f"the bundle expects {expected} on this machine",
        problems=refused,
        hint="Name the environment that has it: --over ENV",
    )


def create(site: Site) -> None:
    """Make the virtual environment, unless conda brought a Python into the prefix."""
    if not site.generation.python.exists():
        _run([str(site.python), "-I", "-m", "venv", "--without-pip", str(site.generation.env)])


def layer(site: Site, over: machine.Interpreter) -> None:
    """Let the environment see the packages of `over` after its own; `over` is not touched.

    Through a .pth file, since an environment made from a virtual environment's Python sees the base
    interpreter's packages and not that environment's. `addsitedir` rather than the bare folder, so
    that .pth files over there (editable installs) work as they do there.
    """
    inside = machine.ask(site.generation.python)
    if inside.version != over.version:
        raise TargetError(
            f"{over.prefix} has Python {over.version}, the bundle is for Python {inside.version}"
        )
    folder = next(Path(p) for p in inside.site_folders if Path(p).is_relative_to(inside.prefix))
    lines = [f"# {over.prefix}\n"]
    lines += [f"import site; site.addsitedir({path!r})\n" for path in over.site_folders]
    (folder / _LAYER).write_text("".join(lines), encoding="utf-8", newline="\n")


def layered_over(generation: Generation) -> Path | None:
    """The environment that a generation is layered over, None when there is none."""
    for file in generation.env.glob(f"lib/python3*/site-packages/{_LAYER}"):
        first = file.read_text(encoding="utf-8").splitlines()[0]
        return Path(first.removeprefix("# "))
    return None


def _environments_at_hand() -> list[Path]:
    import sys

    candidates = [os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX"), sys.prefix]
    return list(dict.fromkeys(Path(c) for c in candidates if c and Path(c).is_dir()))


def _missing(provided: Sequence[str], found: machine.Interpreter) -> list[str]:
    wrong = []
    for item in provided:
        name, _, version = item.partition("==")
        have = found.packages[name]
        if have is None:
            wrong.append(f"{name} is not installed")
        elif not same_version(have, version):
            wrong.append(f"{name} is {have}, not {version}")
    return wrong


def _run(command: list[str]) -> None:
    environment = without(os.environ, ("PYTHON",))
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environment, check=False
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise MachineError(
            "the virtual environment could not be made",
            problems=said[-10:],
            hint="The interpreter needs its venv module; name another with --python.",
        )
