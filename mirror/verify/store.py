"""Stage `store`: is every byte still the one that was installed?"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.core.text import counted, human_size
from mirror.verify.report import Check
from mirror.verify.subject import Subject

_CHUNK = 2**20
_THREADS = 8
#: Kinds whose artifacts lie in the generation under their own path.
_LAID_OUT = ("conda", "wheels", "models", "datasets", "spaces", "files")
_AGAIN = "Install the bundle again: mirror install BUNDLE."


def check(subject: Subject) -> list[Check]:
    """Hash every blob, and what is laid out in the generation where it is a file of its own."""
    artifacts = subject.index.artifacts
    blobs = [(a, subject.root.blobs.path(a.sha256)) for a in artifacts]
    laid_out = [(a, subject.generation.path / a.path) for a in artifacts if _is_laid_out(a)]
    copies = [(a, p) for a, p in laid_out if not _same(p, subject.root.blobs.path(a.sha256))]
    problems = _problems([*blobs, *copies], subject)
    size = human_size(sum(artifact.size for artifact in artifacts))
    linked = f"{len(laid_out) - len(copies)} of {counted(len(laid_out), 'file')} linked to blobs"
    return [
        _judged("store", problems[: len(blobs)], f"{counted(len(blobs), 'blob')}, {size}"),
        _judged("generation", problems[len(blobs) :], f"{linked}, {len(copies)} copied"),
    ]


def _judged(name: str, problems: list[str], what: str) -> Check:
    found = [problem for problem in problems if problem]
    if found:
        return Check(name, "fail", "\n".join(found[:20]), _AGAIN)
    return Check(name, "pass", f"{what}; every sha256 is right")


def _is_laid_out(artifact: Artifact) -> bool:
    if artifact.kind == "wheels":  # its derived members (requirements.txt) go where it likes
        return artifact.path.endswith(".whl")
    return artifact.kind in _LAID_OUT


def _same(path: Path, blob: Path) -> bool:
    """Whether both are one file on disk: then its bytes are hashed once."""
    try:
        return path.samefile(blob)
    except OSError:
        return False


def _problems(work: list[tuple[Artifact, Path]], subject: Subject) -> list[str]:
    """What is wrong with each file, "" where nothing is."""
    stop = threading.Event()
    total = sum(artifact.size for artifact, _ in work)
    with (
        subject.progress.bar("checking every byte", total) as advance,
        ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool,
    ):
        try:
            return list(pool.map(lambda item: _problem(item[0], item[1], stop, advance), work))
        except BaseException:
            stop.set()  # leaving the pool waits for its threads
            raise


def _problem(
    artifact: Artifact, path: Path, stop: threading.Event, advance: Callable[[int], None]
) -> str:
    digest, size = hashlib.sha256(), 0
    try:
        with open(path, "rb", buffering=0) as file:
            while (chunk := file.read(_CHUNK)) and not stop.is_set():
                digest.update(chunk)
                size += len(chunk)
                advance(len(chunk))
    except OSError as error:
        return f"{artifact.path}: {path}: {error.strerror}"
    if size != artifact.size or digest.hexdigest() != artifact.sha256:
        return f"{artifact.path}: {path} has {size} bytes that are not those installed"
    return ""
