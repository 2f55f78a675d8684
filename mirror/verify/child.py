"""How the environment's own interpreter is started: with what variables, and asked what."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import mirror
from mirror.core.secrets import without
from mirror.errors import MirrorError
from mirror.store import environment
from mirror.store.generation import Generation

#: What a scheduler, another launcher or a user's own setting may have left in the environment, and
#: that would change what the children do.
_FOREIGN = re.compile(
    r"PYTHON.*|ACCELERATE_.*|FSDP_.*|TORCHELASTIC_.*|PET_.*|PMI_.*|PMIX_.*|OMPI_.*|MV2_.*|MPI_.*"
    r"|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|GROUP_WORLD_SIZE|ROLE_NAME|MASTER_(ADDR|PORT)"
    r"|OMP_NUM_THREADS|MKL_NUM_THREADS"
)


def variables(generation: Generation) -> dict[str, str]:
    """The environment of every child: this one's, cleaned and without secrets, the generation's.

    NCCL_* and CUDA_VISIBLE_DEVICES stay as the machine has them.
    """
    table = {k: v for k, v in without(os.environ).items() if not _FOREIGN.fullmatch(k)}
    prefix = [str(folder) for folder in environment.path_prefix(generation)]
    table["PATH"] = os.pathsep.join([*prefix, table.get("PATH", os.defpath)])
    return {
        **table,
        **environment.variables(generation),
        "PYTHONUNBUFFERED": "1",
        # Neither the working directory nor caches written there may change what is verified.
        "PYTHONSAFEPATH": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def trainer() -> str:
    """The trainer's file to run: inside mirror when installed, beside it in a checkout."""
    package = Path(mirror.__file__).parent
    for folder in (package / "trainer", package.parent / "trainer"):
        if (folder / "__main__.py").is_file():
            return str(folder / "__main__.py")
    raise MirrorError(f"the trainer is neither in {package} nor beside it")


def ask(
    python: Path,
    command: str,
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    folder: Path,
    timeout: float,
) -> tuple[Any, str]:
    """Run one of the trainer's commands; returns its answer, or None and why there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    answer, log = folder / "answer.json", folder / "log"
    line = [str(python), trainer(), command, "--out", str(answer), *arguments]
    reason = run(line, environ=environ, log=log, timeout=timeout)
    if reason:
        return None, reason
    try:
        return json.loads(answer.read_bytes()), ""
    except (OSError, ValueError) as error:
        return None, f"it ended well and left no answer: {error}"


def run(line: Sequence[str], *, environ: Mapping[str, str], log: Path, timeout: float) -> str:
    """Run a command, its output into `log`; returns why it failed, empty when it did not."""
    with open(log, "wb") as output:
        try:
            done = subprocess.run(
                line,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                cwd=log.parent,
                timeout=timeout,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it had not ended after {timeout:.0f} s"
        except OSError as error:
            return f"{line[0]} does not start: {error.strerror}"
    if done.returncode == 0:
        return ""
    return f"{ending(done.returncode)}: {last_words(log)}"


def ending(code: int) -> str:
    """A process's exit code in words."""
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        return f"it was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"it was killed by signal {-code}"


def last_words(log: Path, count: int = 3) -> str:
    """The last lines of a log, on one line."""
    text = log.read_text(encoding="utf-8", errors="replace")
    kept = [line.strip() for line in text.splitlines() if line.strip()][-count:]
    return " | ".join(kept)[-600:] or "it said nothing"
