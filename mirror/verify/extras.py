"""Stages `ray` and `vllm`: does what jobs start beside torch work here? Only when asked for.

Each is one process of the environment's own interpreter (trainer/ray_check.py, vllm_check.py) and
whatever that starts. All of it is ended with the stage: workers can outlive the program that
started them, and vLLM's hold the GPUs' memory.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.errors import UsageError
from mirror.verify import child, cluster, diagnosis, generating, host, processes, ranks, symptoms
from mirror.verify.report import Check
from mirror.verify.subject import CHECKS, Subject

#: Seconds that each may take. Ray is up after 5 s; after 40 s on two cores that have other work.
LIMITS = {"ray": 180.0, "vllm": 600.0}
#: Seconds before their end at which a process writes into its log where it stands.
_STACK = 10.0
#: What a socket's address holds on Linux (unix(7)), and the longest that Ray adds to its folder:
#: /session_2026-12-01_06-27-34_666000_4194304/sockets/plasma_store
_ADDRESS, _ADDED = 107, 65
#: Longest folder that Ray's can be made in, in bytes.
_LONGEST = _ADDRESS - _ADDED - len("/mirror-ray-12345678")
_ABSENT = "asked for, and not in this environment"


def check(
    name: str, subject: Subject, python: Path, *, gpus: int, env: Mapping[str, str]
) -> Iterable[Check]:
    """The checks of one stage, "ray" or "vllm".

    gpus: on how many; 0: on the CPU. env: variables that this machine needs, as the ladder found
    them. To be used within processes.nothing_left_behind, which adopts what is orphaned.
    Raises UsageError for another name.
    """
    if name not in CHECKS:
        raise UsageError(f"there is no check {name!r}; there are {', '.join(CHECKS)}")
    stage = _ray if name == "ray" else _vllm
    return list(stage(subject, python, gpus, env))


def _ray(subject: Subject, python: Path, gpus: int, env: Mapping[str, str]) -> Iterator[Check]:
    tasks = gpus or 2
    try:
        place = short_folder()
    except OSError as error:
        advice = f"Set TMPDIR to a folder that can be written to, of at most {_LONGEST} characters."
        yield Check("folder", "fail", f"there is none for Ray's sockets: {error}", advice)
        return
    environ = {
        # A cluster that is there already, and what jobs set, are not what is looked at.
        **{k: v for k, v in _environ(subject, env).items() if not _RAY_OWN.fullmatch(k)},
        "RAY_USAGE_STATS_ENABLED": "0",
        # Other users of this machine can reach Ray's ports. Without a token given here, newer ones
        # write one into the home; older ones know of none.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    line = ["--folder", str(place), "--tasks", str(tasks), *(["--gpus"] if gpus else [])]
    try:
        with subject.progress.bar("ray", 1, "runs") as advance:
            answer, reason, stayed = _ask("ray", subject, python, line, environ)
            advance(1)
        logs = _keep_logs(place, subject.work / "ray" / "session")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    if answer is None:
        yield from _failed("ray", subject, reason, logs)
        yield from cluster.suspects(host.look(), environ, tasks)
    elif not answer:
        yield Check("installed", "fail", _ABSENT, _bundle("ray"))
    else:
        yield from cluster.judge_ray(answer, tasks, gpu=gpus > 0)
        yield from cluster.small_store(symptoms.excerpt(subject.work / "ray" / "log"))
    yield from _ended(stayed)


#: RAY_ADDRESS and the like; what tunes Ray (RAY_memory_usage_threshold ...) stays.
_RAY_OWN = re.compile(
    r"RAY_(ADDRESS|NAMESPACE|AUTH_.*|JOB_.*|RUNTIME_ENV_.*|EXPERIMENTAL_NOSET_.*|TMPDIR)"
)


def short_folder() -> Path:
    """A new folder of this user's for Ray, whose sockets' addresses fit in there.

    The report's would be too long. Raises OSError when there is none.
    """
    why: list[str] = []
    for parent in dict.fromkeys((tempfile.gettempdir(), "/tmp")):  # noqa: S108 -- mkdtemp's modes
        if len(os.fsencode(parent)) > _LONGEST:
            why.append(f"{parent} is too long ({len(os.fsencode(parent))} bytes)")
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="mirror-ray-", dir=parent))
        except OSError as error:
            why.append(f"{parent}: {error.strerror}")
    raise OSError("; ".join(why))


def _keep_logs(place: Path, kept: Path) -> dict[str, str]:
    """Ray's own logs, moved into the report's folder; name -> text for the dictionary."""
    found: dict[str, str] = {}
    for file in sorted(place.glob("session_2*/logs/*")):
        if file.suffix not in (".log", ".out", ".err") or not file.is_file():
            continue
        kept.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, kept / file.name)
        found[file.name] = symptoms.excerpt(file)
    return found


def _vllm(subject: Subject, python: Path, gpus: int, env: Mapping[str, str]) -> Iterator[Check]:
    if subject.model is None:
        what = subject.named_model or "the bundle"
        said = f"{what} is not in the bundle" if subject.named_model else f"{what} has no model"
        advice = "Add a model that generates text under `models:` in the manifest; build again."
        yield Check("model", "fail", f"there is nothing to generate with: {said}", advice)
        return
    try:
        shape = generating.read(subject.model)
        size = shape.parallel(max(gpus, 1))
    except ValueError as error:
        advice = "Name a language model of the bundle as `verify.model` in the manifest."
        yield Check("model", "fail", f"{subject.model.name}: {error}", advice)
        return
    yield Check("parallel", "pass", size.why)
    before = _memory(size.ranks) if gpus else []
    share, problem = generating.share(before, shape.weights // size.ranks)
    if problem:
        advice = "nvidia-smi shows who holds memory; or ask for more GPUs, or a smaller model."
        yield Check("memory", "fail", problem, advice)
        return
    environ = {
        **_environ(subject, env),
        # vLLM forks otherwise, and a fork cannot use CUDA that its parent has started.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_NO_USAGE_STATS": "1",
        # What an earlier run found out of peer access is kept there, and may be true no more.
        "VLLM_CACHE_ROOT": str(subject.work / "vllm" / "cache"),
    }
    line = ["--model", str(subject.model), "--parallel", str(size.ranks)]
    line += ["--share", f"{share:.2f}", "--context", str(shape.context)]
    if not gpus:
        line.append("--cpu")
        environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; its default takes half of all
    with subject.progress.bar("vllm", 1, "runs") as advance:
        answer, reason, stayed = _ask("vllm", subject, python, line, environ)
        advance(1)
    if answer is None:
        yield from _failed("vllm", subject, reason, {}, hang=size.ranks > 1)
    elif not answer:
        yield Check("installed", "fail", _ABSENT, _bundle("vllm"))
    elif "first" not in answer:
        yield Check("generate", "skip", f"vllm {answer['version']} is not built for CPUs")
    else:
        yield from generating.judge(answer, env)
    if before:
        yield generating.given_back(before, lambda: _memory(size.ranks), share)
    # Its workers are ended with it, always: that some ran on a moment longer says nothing.
    yield from _ended(stayed)


def _memory(count: int) -> list[generating.Memory]:
    """Of the first so many visible GPUs, as far as the driver tells."""
    rows = ((gpu.memory, gpu.used) for gpu in (host.visible_gpus() or [])[:count])
    return [
        generating.Memory((int(total) - int(used)) * 2**20, int(total) * 2**20)
        for total, used in rows
        if total.isdecimal() and used.isdecimal()
    ]


def _environ(subject: Subject, env: Mapping[str, str]) -> dict[str, str]:
    return {**child.variables(subject.generation), **env}


def _ask(
    name: str, subject: Subject, python: Path, line: Sequence[str], environ: Mapping[str, str]
) -> tuple[Any, str, list[int]]:
    """The trainer's answer, or None and why; and which of its processes cannot be ended."""
    limit = LIMITS[name]
    stack = max(limit - _STACK, limit / 2)
    before = processes.descendants()
    try:
        answer, reason = child.ask(
            python,
            name,
            [*line, "--limit", f"{stack:.1f}"],
            environ=environ,
            folder=subject.work / name,
            timeout=limit,
        )
    finally:
        processes.end(before)
    return answer, reason, sorted(processes.descendants() - before)


def _failed(
    name: str, subject: Subject, reason: str, logs: Mapping[str, str], *, hang: bool = False
) -> Iterator[Check]:
    """What it was at, where it stood, and what the dictionary knows of its words."""
    folder = subject.work / name
    phase = ranks.read_phase(folder, 0)
    said = symptoms.excerpt(folder / "log")
    timed_out = reason.startswith("it had not ended")
    lines = [reason, f"last phase: {shown(str(phase)) if phase else 'none'}"]
    if timed_out:
        lines += [f"it stood in {place}" for place in _stands(said)]
    found = symptoms.diagnose_all({name: said, **logs, "the end": reason})
    advice = f"The whole output is in {folder}."
    if timed_out and hang and not found:
        known = next(entry for entry in symptoms.TABLE if entry.key == "vllm-hang")
        advice = f"{known.cause} {known.advice}\n{advice}"
    yield Check(phase.name if phase else "run", "fail", "\n".join(lines), advice)
    yield from diagnosis.checks(found)


def _stands(log: str) -> list[str]:
    """The innermost lines of the main thread, as faulthandler wrote them last."""
    dump = log.rpartition("Timeout (")[2] if "Timeout (" in log else ""
    main = dump.rpartition("Thread 0x")[2]
    found = re.findall(r'^  File "([^"]+)", line (\d+) in (\S+)', main, re.MULTILINE)
    return [shown(f"{function} ({file}:{number})") for file, number, function in found[:3]]


def _ended(stayed: Sequence[int]) -> Iterator[Check]:
    if stayed:
        ids = ", ".join(map(str, stayed))
        evidence = f"{counted(len(stayed), 'process')} cannot be ended: {ids}"
        yield Check("stop", "fail", evidence, "Look at dmesg: a driver that hangs holds them.")
    else:
        yield Check("stop", "pass", "none of its processes is left")


def _bundle(name: str) -> str:
    return (
        f"Add {name} to `wheels.requirements` in the manifest, build and install again; or leave"
        f" {name} out of `verify.checks`."
    )
