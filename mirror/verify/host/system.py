"""The system below everything: kernel, cores, memory, shared memory, limits, disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from mirror.core.paths import shown
from mirror.core.text import counted, human_size
from mirror.verify.host.finding import Problem, judged
from mirror.verify.host.machine import Machine, container
from mirror.verify.report import Check

#: NCCL wants a gigabyte for several GPUs; containers start with 64 MiB.
_SHM_WANTED = 2**30
_DISK_WANTED = 10**9
#: What one rank takes of the host: torch's and CUDA's libraries, pinned buffers, data loaders.
_MEMORY_PER_RANK = 4 * 10**9
#: accelerate warns below it: processes may hang.
_KERNEL_WANTED = (5, 5)
_FILES_WANTED = 1024
_UNLIMITED = float("inf")


def check_system(here: Machine) -> Check:
    """Name, kernel, processor, C library; and in which container."""
    release = dict(_assignments(here.read("/etc/os-release") or ""))
    kernel = (here.read("/proc/sys/kernel/osrelease") or "").strip()
    parts = [release.get("PRETTY_NAME", ""), f"kernel {kernel}" if kernel else "", here.processor]
    parts += [f"glibc {here.glibc}" if here.glibc else ""]
    inside = container(here)
    parts += [f"in {inside}" if inside else ""]
    problems = []
    found = re.match(r"(\d+)\.(\d+)", kernel)
    if found and (int(found[1]), int(found[2])) < _KERNEL_WANTED:
        wanted = ".".join(map(str, _KERNEL_WANTED))
        what = f"kernel {shown(kernel)} is older than {wanted}: processes of accelerate may hang"
        problems.append(Problem("warn", what, "Take a newer kernel; containers use the host's."))
    return judged("system", [shown(", ".join(part for part in parts if part))], problems)


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name.strip(), value.strip().strip("\"'")


def check_memory(here: Machine, ranks: int) -> Check:
    """Cores and memory that this process may use; a rank needs some of both.

    ranks: how many will run.
    """
    have, cores = _memory(here), _cores(here)
    if have is None or cores is None:
        return Check("cpu and memory", "skip", "this system has no /proc to read them from")
    limit, share = _memory_limit(here), _share(here)
    usable, threads = min(have, limit), min(cores, share)
    evidence = [f"{counted(cores, 'core')}, {human_size(have)}"]
    if limit < have:
        evidence.append(f"of which this cgroup may use {human_size(int(limit))}")
    if share < cores:
        evidence.append(f"as much time as {share:g} cores have")
    problems = []
    if usable < ranks * _MEMORY_PER_RANK:
        what = f"{human_size(int(usable))} for {counted(ranks, 'rank')}: each takes about 4 GB"
        advice = "Give the container or the job more memory (--memory, --mem)."
        problems.append(Problem("warn", what, advice))
    if threads < ranks:
        what = f"{threads:g} cores for {counted(ranks, 'rank')}: each needs one of its own"
        advice = "Give the container or the job more cores (--cpus, --cpus-per-task)."
        problems.append(Problem("warn", what, advice))
    return judged("cpu and memory", [", ".join(evidence)], problems)


def _memory(here: Machine) -> int | None:
    found = re.search(r"MemTotal: *(\d+) kB", here.read("/proc/meminfo") or "")
    return int(found[1]) * 1024 if found else None


def _cores(here: Machine) -> int | None:
    """Those that this process may run on ("0-3,8")."""
    found = re.search(r"Cpus_allowed_list:\s*([\d,-]+)", here.read("/proc/self/status") or "")
    if not found:
        return None
    ranges = (part.partition("-") for part in found[1].split(",") if part)
    return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)


def _memory_limit(here: Machine) -> float:
    new = _cgroup(here, "", "memory.max")
    old = _cgroup(here, "memory", "memory.limit_in_bytes")
    return min([*(int(v) for v in (*new, *old) if v.isdecimal() and int(v) < 2**60), _UNLIMITED])


def _share(here: Machine) -> float:
    """How many cores' time the cgroup gets."""
    quotas = [value.split() for value in _cgroup(here, "", "cpu.max")]
    whole = _cgroup(here, "cpu", "cpu.cfs_period_us")
    quotas += [
        [v, p] for v, p in zip(_cgroup(here, "cpu", "cpu.cfs_quota_us"), whole, strict=False)
    ]
    shares = [int(q[0]) / int(q[1]) for q in quotas if len(q) == 2 and all(map(str.isdecimal, q))]
    return min([*shares, _UNLIMITED])


def _cgroup(here: Machine, controller: str, file: str) -> list[str]:
    """What this process's cgroup and those above it say; controller: empty for version 2.

    In a container its own path may be the host's, while it sees its own cgroup as the root.
    """
    path = "/"
    for line in (here.read("/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, where = rest.partition(":")
        if controller in names.split(","):
            path = where or "/"
    top = f"/sys/fs/cgroup/{controller}".rstrip("/")
    folders = [PurePosixPath(path), *PurePosixPath(path).parents]
    texts = (here.read(f"{top}{str(folder).rstrip('/')}/{file}") for folder in folders)
    return [text.strip() for text in texts if text]


def check_shared_memory(here: Machine) -> Check:
    """What ranks on one host, and DataLoader's workers, share data through."""
    folder = "/dev/shm"  # noqa: S108 -- not for our files
    room = here.room(folder)
    if room is None:
        return Check("shared memory", "skip", f"this system has no {folder}")
    fact = f"{folder}: {human_size(room.total)}, {human_size(room.free)} free"
    if room.free >= _SHM_WANTED:
        return judged("shared memory", [fact], [])
    what = f"{fact}: NCCL and DataLoader's workers want {human_size(_SHM_WANTED)}"
    if room.total >= _SHM_WANTED:
        advice = f"Remove what others left in {folder}: nccl-*, torch_*, sem.*."
    elif (inside := container(here)) == "Kubernetes":
        advice = f"Mount an emptyDir with medium: Memory at {folder}."
    elif inside:
        advice = "Start the container with --ipc=host or --shm-size=8g."
    else:
        advice = f"As root: mount -o remount,size=8G {folder}"
    return judged("shared memory", [], [Problem("warn", what, advice)])


def check_limits(here: Machine) -> Check:
    """Of a process: memory that it may pin, files that it may open, its stack."""
    limits = dict(_limits(here.read("/proc/self/limits") or ""))
    if not limits:
        return Check("limits", "skip", "/proc/self/limits cannot be read")
    facts = [f"{name} {_amount(name, soft)}" for name, (soft, _) in limits.items()]
    problems = []
    pinned, _ = limits.get("locked memory", (_UNLIMITED, _UNLIMITED))
    cards = here.names("/sys/class/infiniband")
    if pinned < _UNLIMITED and cards:
        amount = _amount("locked memory", pinned)
        what = f"only {amount} of memory may be locked, and {shown(cards[0])} needs it all"
        inside = "--ulimit memlock=-1" if container(here) else "memlock unlimited in limits.conf"
        advice = f"ulimit -l unlimited, which takes {inside}."
        problems.append(Problem("warn", what, advice))
    files, hard = limits.get("open files", (_UNLIMITED, _UNLIMITED))
    if files < _FILES_WANTED:
        what = f"only {files:g} open files: NCCL and DataLoader's workers need more"
        allowed = _amount("open files", hard)
        problems.append(Problem("warn", what, f"ulimit -n {_FILES_WANTED} (allowed: {allowed})"))
    stack, _ = limits.get("stack size", (0.0, 0.0))
    if stack == _UNLIMITED:
        what = "the stack is unlimited: NCCL older than 2.28 can crash (torch before 2.11 has one)"
        problems.append(Problem("warn", what, "ulimit -s 8192 before training is started."))
    return judged("limits", [", ".join(facts)], problems)


def _limits(text: str) -> Iterator[tuple[str, tuple[float, float]]]:
    for line in text.splitlines():
        found = re.match(r"Max (locked memory|open files|stack size) +(\w+) +(\w+)", line)
        if found:
            yield found[1], (_limit(found[2]), _limit(found[3]))


def _limit(text: str) -> float:
    return float(text) if text.isdecimal() else _UNLIMITED


def _amount(name: str, value: float) -> str:
    if value == _UNLIMITED:
        return "unlimited"
    return f"{int(value):,}" if name == "open files" else human_size(int(value))


def check_disk(here: Machine, root: str, *, programs: bool) -> Check:
    """Room where the root is, and whether programs may run from there.

    programs: whether an environment is installed there.
    """
    room = here.room(root)
    if room is None:
        return Check("disk", "skip", f"{shown(root)} cannot be looked at")
    problems = []
    if room.free < _DISK_WANTED:
        what = f"{human_size(room.free)} free at {shown(root)}"
        problems.append(Problem("warn", what, "Make room: checkpoints and logs need it."))
    place, options = mount(here.read("/proc/self/mounts") or "", root)
    if "noexec" in options and programs:
        what = f"{shown(place)} is mounted noexec: no library of the environment can be loaded"
        advice = f"As root: mount -o remount,exec {shown(place)}; or install into another --root."
        problems.append(Problem("fail", what, advice))
    return judged("disk", [f"{human_size(room.free)} free at {shown(root)}"], problems)


def mount(text: str, path: str) -> tuple[str, tuple[str, ...]]:
    """Where the file system of `path` is mounted, and with what options, by /proc/self/mounts."""
    place = ""
    options: tuple[str, ...] = ()
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) < 4:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(place):  # of two at one place the later lies on top
            place, options = point, tuple(fields[3].split(","))
    return place, options
