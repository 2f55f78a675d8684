"""What a shell or a program needs to be told to live in a generation.

One table of variables for everybody: `activate` (a person's shell), `mirror run` and `mirror
verify`, so that what was verified is what runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from mirror.core.artifact import Json
from mirror.errors import MachineError
from mirror.store import atomic, seal
from mirror.store.generation import Generation

_MODULES_CACHE = "HF_MODULES_CACHE"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# $0 is this Python, which tells the variables; the rest are scripts.
_ACTIVATE = """
exec 3>&1 >/dev/null 2>&1
for mirror_script do [ -r "$mirror_script" ] && . "$mirror_script"; done
unset mirror_script
exec "$0" -I -S -c 'import json, os; print(json.dumps(dict(os.environ)))' >&3
"""
_SHELLS_OWN = ("_", "SHLVL", "PWD", "OLDPWD")


def path_prefix(generation: Generation) -> list[Path]:
    """The folders that stand first on PATH: the environment's programs, then mirror itself."""
    folders = (generation.env / "bin", generation.tool / "bin")
    return [folder for folder in folders if folder.is_dir()]


def variables(generation: Generation) -> dict[str, str]:
    """Every variable for programs that run in this generation as this user.

    With what the scripts of conda packages that `activate` sources set in a shell; PATH is among
    them only where one of them changes it.
    """
    table = _settings(generation) | launch_settings(generation)
    return table | _activated(generation, table)


def _settings(generation: Generation) -> dict[str, str]:
    """Every variable but PATH and the launch settings that is set without a shell."""
    table = {
        "MIRROR_MODELS": str(generation.models),
        "MIRROR_DATASETS": str(generation.datasets),
        "HF_HUB_CACHE": str(generation.hub),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # The cache may be read-only and shared; code that models bring is copied per user.
        _MODULES_CACHE: str(_user_cache() / "mirror" / "hf-modules"),
        "WANDB_MODE": "offline",
        "PIP_NO_INDEX": "1",
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        # Packages that a user once installed for himself are not what was verified.
        "PYTHONNOUSERSITE": "1",
    }
    if generation.wheels.is_dir():
        # As a URL, since both tools split the plain text: pip at spaces, uv at commas.
        table["PIP_FIND_LINKS"] = table["UV_FIND_LINKS"] = generation.wheels.as_uri()
    if (generation.env / "pyvenv.cfg").is_file():
        table["VIRTUAL_ENV"] = str(generation.env)
    if (generation.env / "conda-meta").is_dir():
        table["CONDA_PREFIX"] = str(generation.env)
        table |= _package_variables(generation)
    return table


def _package_variables(generation: Generation) -> dict[str, str]:
    """What conda packages want set, as conda reads it: etc/conda/env_vars.d/*.json."""
    found: dict[str, str] = {}
    for file in sorted(generation.env.glob("etc/conda/env_vars.d/*.json")):
        with suppress(OSError, ValueError, AttributeError):
            wanted = json.loads(file.read_bytes()).items()
            found |= {name: str(value) for name, value in wanted if _NAME.fullmatch(name)}
    return found


def _activation_scripts(generation: Generation) -> list[Path]:
    """What conda packages want done in a shell that uses them, in conda's order."""
    return sorted(generation.env.glob("etc/conda/activate.d/*.sh"))


def _activated(generation: Generation, table: Mapping[str, str]) -> dict[str, str]:
    """What the activation scripts set or change, in a shell that has the variables of `table`.

    As in conda, what they say and whether they fail does not matter.
    """
    scripts = _activation_scripts(generation)
    if not scripts:
        return {}
    path = [*map(str, path_prefix(generation)), os.environ.get("PATH", os.defpath)]
    before = {**os.environ, **table, "PATH": os.pathsep.join(path)}
    done = subprocess.run(
        [shutil.which("bash") or "sh", "-c", _ACTIVATE, sys.executable, *scripts],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=before,
        check=False,
    )
    try:
        after: dict[str, str] = json.loads(done.stdout)
    except ValueError:  # one of them has ended the shell
        return {}
    return {k: v for k, v in after.items() if before.get(k) != v and k not in _SHELLS_OWN}


def launch_settings(generation: Generation) -> dict[str, str]:
    """The variables that verify found to be needed here; none before it ran or when none are.

    Raises MachineError when the file that holds them is damaged.
    """
    try:
        document = json.loads(generation.launch_file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        document = None
    settings = document.get("env") if isinstance(document, dict) else None
    if not isinstance(settings, dict) or not all(
        _NAME.fullmatch(name) and isinstance(value, str) for name, value in settings.items()
    ):
        raise MachineError(
            f"{generation.launch_file} is not what mirror verify writes",
            hint="Run `mirror verify` again: it writes the file anew.",
        )
    return settings


def write_launch(generation: Generation, root: Path, document: Mapping[str, Json]) -> None:
    """Record the launch settings that verify found; `activate` sets them from now on.

    `document["env"]` holds the variables. Raises OSError when the generation cannot be written.
    """
    data = json.dumps(document, indent=2, sort_keys=True) + "\n"
    atomic.write(generation.launch_file, data.encode())
    try:
        base, _ = seal.split_activate(_activate(generation).read_bytes())
    except FileNotFoundError:
        base = _base(generation, root)
    atomic.write(_activate(generation), base + launch_part(generation))


def write_activate(generation: Generation, root: Path) -> None:
    """Write the generation's `activate`, for `. ROOT/current/activate` in any POSIX shell."""
    atomic.write(_activate(generation), _base(generation, root) + launch_part(generation))


def launch_part(generation: Generation) -> bytes:
    """The end of `activate`, which the seal does not cover: the launch settings.

    Raises MachineError as `launch_settings` does.
    """
    settings = sorted(launch_settings(generation).items())
    return seal.launch_part(f"export {name}={shlex.quote(value)}" for name, value in settings)


def _activate(generation: Generation) -> Path:
    return generation.path / seal.ACTIVATE


def _base(generation: Generation, root: Path) -> bytes:
    prefix = ":".join(str(folder) for folder in path_prefix(generation))
    lines = [
        f"# Made by mirror: puts generation {generation.number} in use in this shell.",
        f'PATH={shlex.quote(prefix)}"${{PATH:+:$PATH}}"' if prefix else "",
        "export PATH" if prefix else "",
    ]
    table = _settings(generation)
    table["MIRROR_ROOT"] = str(root)
    table.pop(_MODULES_CACHE)
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(table.items())]
    # Of whoever sources the file, not of whoever installed.
    lines.append(f'export {_MODULES_CACHE}="${{XDG_CACHE_HOME:-$HOME/.cache}}/mirror/hf-modules"')
    for script in _activation_scripts(generation):
        name = shlex.quote(str(script))
        lines.append(f"if [ -r {name} ]; then . {name}; fi")
    return "".join(f"{line}\n" for line in lines if line).encode()


def _user_cache() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    return Path(chosen) if chosen else Path("~/.cache").expanduser()
