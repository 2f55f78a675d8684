"""Wheels unpacked into an environment that holds none of them yet, by several processes.

An installer with a cache makes every file, links it and removes it again; here each is made once.
What it leaves is what the standard for installed projects asks for (RECORD, INSTALLER), so pip and
uv can list, replace and remove the packages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from mirror.core.paths import shown
from mirror.errors import MachineError

#: Processes at most: beyond, they wait for the file system.
_MOST = 8
#: Bytes of wheels that are worth a process of their own, which takes 0.1 s to start.
_WORTH = 4 * 10**6

_PATHS = "import json, sysconfig; print(json.dumps(sysconfig.get_paths()))"
_WORKER = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from mirror.ecosystems.wheels.unpacking import worker
worker()
"""


def unpack(wheels: Sequence[Path], python: Path, env: Mapping[str, str]) -> None:
    """Install wheels into the environment of an interpreter. Their bytes have been checked.

    env: the processes' variables. Where two wheels bring one file, either may have the last word,
    as with uv.
    Raises MachineError that names every wheel which cannot be unpacked, and why.
    """
    paths = _paths(python, env)
    running = [_start(part, python, paths, env) for part in _parts(wheels)]
    failures = [line for process in running for line in _end(process)]
    if failures:
        raise MachineError("the wheels could not be installed", problems=map(shown, failures[:20]))


def worker() -> None:
    """One of the processes: asked on standard input, answers on standard output."""
    asked = json.load(sys.stdin)
    os.umask(0o022)
    failures = []
    for wheel in map(Path, asked["wheels"]):
        try:
            _install(wheel, asked["paths"], asked["python"])
        except Exception as error:  # noqa: BLE001 -- whatever a wheel does to the library
            failures.append(f"{wheel.name}: {type(error).__name__}: {error}")
    json.dump(failures, sys.stdout)


def _install(wheel: Path, paths: Mapping[str, str], python: str) -> None:
    from installer import install
    from installer.destinations import SchemeDictionaryDestination
    from installer.sources import WheelContentElement, WheelFile

    class Wheel(WheelFile):
        @property
        def data_dir(self) -> str:
            """Named as its metadata are, which the file's name may spell otherwise."""
            return self.dist_info_dir.removesuffix(".dist-info") + ".data"

        def get_contents(self) -> Iterator[WheelContentElement]:
            """A script is a program, also where the archive does not say so."""
            scripts = f"{self.data_dir}/scripts/"
            for record, stream, executable in super().get_contents():
                yield record, stream, executable or record[0].startswith(scripts)

    with Wheel.open(wheel) as source:
        headers = f"{paths['headers']}/{source.distribution}"
        destination = SchemeDictionaryDestination(
            {**paths, "headers": headers}, python, "posix", overwrite_existing=True
        )
        install(source, destination, {"INSTALLER": b"airgap-mirror\n"})


def _paths(python: Path, env: Mapping[str, str]) -> dict[str, str]:
    """Where an interpreter has what kind of file."""
    done = subprocess.run(
        [str(python), "-I", "-c", _PATHS],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=env,
        check=False,
    )
    try:
        known = json.loads(done.stdout)
    except ValueError:
        said = done.stderr.strip().splitlines()[-3:]
        raise MachineError(f"{python} does not run", problems=said) from None
    # As pip has it in a virtual environment, where Python's own folder is the base's.
    headers = f"{known['data']}/include/site/python{Path(known['stdlib']).name[6:]}"
    kinds = ("purelib", "platlib", "scripts", "data")
    return {**{kind: known[kind] for kind in kinds}, "headers": headers}


def _parts(wheels: Sequence[Path]) -> list[list[Path]]:
    """One part a process, of about as many bytes each."""
    sizes = {path: path.stat().st_size for path in wheels}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    count = max(1, min(_MOST, cores, len(wheels), sum(sizes.values()) // _WORTH))
    parts: list[list[Path]] = [[] for _ in range(count)]
    load = [0] * count
    for path in sorted(wheels, key=lambda path: -sizes[path]):
        least = load.index(min(load))
        parts[least].append(path)
        load[least] += sizes[path]
    return parts


def _start(
    part: Sequence[Path], python: Path, paths: Mapping[str, str], env: Mapping[str, str]
) -> subprocess.Popen[str]:
    asked = {"paths": paths, "python": str(python), "wheels": [str(path) for path in part]}
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", "-c", _WORKER, json.dumps(sys.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=env,
    )
    assert process.stdin is not None  # noqa: S101 -- asked for above
    process.stdin.write(json.dumps(asked))
    process.stdin.close()
    process.stdin = None
    return process


def _end(process: subprocess.Popen[str]) -> list[str]:
    """What a process could not do."""
    out, said = process.communicate()
    try:
        return [str(line) for line in json.loads(out)]
    except ValueError:
        return said.strip().splitlines()[-5:] or [f"a process ended with {process.returncode}"]
