"""What a machine or its user has set that changes how NCCL and torch work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mirror.core.paths import shown
from mirror.verify.host.finding import Problem, judged
from mirror.verify.host.machine import Machine
from mirror.verify.report import Check

_MACHINE_FILE = "/etc/nccl.conf"
_ON = re.compile(r"(?i)1|true|yes|on")

#: Variable, values, what they do. Bandwidths: all-reduce on 2 x H200, 294 GB/s without (measured).
_COSTLY = (
    ("NCCL_P2P_DISABLE", _ON, "GPUs reach each other through host memory only: 27 GB/s, not 294"),
    ("NCCL_P2P_LEVEL", re.compile("LOC|0"), "GPUs reach each other through host memory only"),
    ("NCCL_SHM_DISABLE", _ON, "GPUs that are no peers talk through sockets"),
    ("NCCL_COMM_ID", re.compile(".+"), "all jobs meet at this one address, and hang"),
    ("CUDA_LAUNCH_BLOCKING", _ON, "every kernel is waited for: slow, and NCCL can deadlock"),
)
#: NCCL chooses these itself, for each machine (its guide: not for production).
_PINNED = re.compile(
    r"NCCL_(ALGO|PROTO|NTHREADS|BUFFSIZE|(MIN|MAX)_(NCHANNELS|CTAS)|(TOPO|GRAPH)_FILE)"
)
_INTERFACES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
#: NVIDIA's images say by NCCL_VERSION what they hold: no setting.
_WATCHED = re.compile(r"NCCL_(?!VERSION$)\w+|(TORCH_NCCL|GLOO)_\w+|CUDA_LAUNCH_BLOCKING")
#: Libraries that torch brings itself: one found before them by LD_LIBRARY_PATH takes their place.
_TAKEN = re.compile(r"lib(nccl|cudart|cublas|cublasLt|cudnn|cusparse|cufft|nvrtc|nvJitLink)\.so")


@dataclass(frozen=True, slots=True)
class Setting:
    """A variable, and where it is set: "environment" or a file."""

    name: str
    value: str
    where: str


def settings(here: Machine) -> list[Setting]:
    """What NCCL will read: the environment before the user's file before the machine's."""
    found = [Setting(k, v, "environment") for k, v in sorted(here.environ.items())]
    found = [setting for setting in found if _WATCHED.fullmatch(setting.name)]
    own = here.environ.get("NCCL_CONF_FILE") or f"{here.home}/.nccl.conf"
    known = {setting.name for setting in found}
    for path in (own, _MACHINE_FILE):
        for setting in _in_file(here, path):
            if setting.name not in known:
                known.add(setting.name)
                found.append(setting)
    return found


def _in_file(here: Machine, path: str) -> Iterator[Setting]:
    for line in (here.read(path) or "").splitlines():
        name, equals, value = line.partition("=")
        if equals and not name.lstrip().startswith("#"):
            yield Setting(name.strip(), value.strip(), path)


def check_nccl(here: Machine) -> Check:
    """Settings of NCCL, with what is costly, stale or impossible; all of them are kept."""
    found = settings(here)
    if not found:
        return judged("nccl settings", ["none"], [])
    facts = [f"{shown(s.name)}={shown(s.value)} ({shown(s.where)})" for s in found]
    problems = [problem for setting in found for problem in _judge(here, setting)]
    return judged("nccl settings", facts, problems)


def _judge(here: Machine, setting: Setting) -> Iterator[Problem]:
    text = f"{shown(setting.name)}={shown(setting.value)}"
    where = "it" if setting.where == "environment" else f"it from {shown(setting.where)}"
    for name, values, effect in _COSTLY:
        if setting.name == name and values.fullmatch(setting.value):
            advice = f"Remove {where} unless this machine needs it: mirror measures what it costs."
            yield Problem("warn", f"{text}: {effect}", advice)
    if _PINNED.fullmatch(setting.name) and setting.where != _MACHINE_FILE:
        advice = f"Remove {where} unless it was chosen for this very machine."
        yield Problem("warn", f"{text} pins what NCCL chooses for each machine", advice)
    if setting.name in _INTERFACES:
        there = here.names("/sys/class/net")
        if there and not interfaces(setting.value, there):
            what = f"{text}: there is no such interface, only {shown(', '.join(there))}"
            yield Problem("warn", what, f"Remove {where}, or name one that is there.")


def interfaces(value: str, there: list[str]) -> list[str]:
    """Which of these NCCL takes: beginnings of names; "=" in front: whole names; "^": all but."""
    but, whole = value.startswith("^"), value.lstrip("^").startswith("=")
    names = [name for name in value.lstrip("^=").split(",") if name]
    if not names:
        return there

    def named(one: str) -> bool:
        return one in names if whole else one.startswith(tuple(names))

    return [one for one in there if named(one) != but]


def check_libraries(here: Machine) -> Check:
    """LD_PRELOAD and LD_LIBRARY_PATH: both reach into every rank."""
    problems, facts = [], []
    if preload := here.environ.get("LD_PRELOAD"):
        what = f"LD_PRELOAD={shown(preload)} is loaded into every process"
        problems.append(Problem("warn", what, "Unset it unless training needs it."))
    folders = [f for f in here.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    for folder in dict.fromkeys(folders):
        taken = [name for name in here.names(folder) if _TAKEN.match(name)]
        if "stubs" in folder.split("/") and "libcuda.so" in here.names(folder):
            what = f"LD_LIBRARY_PATH: {shown(folder)} holds a libcuda.so that does nothing"
            advice = "Take it out: it is for linking only, and CUDA fails with error 34."
            problems.append(Problem("warn", what, advice))
        elif taken:
            listed = ", ".join(map(shown, taken[:4])) + (", ..." if len(taken) > 4 else "")
            what = f"LD_LIBRARY_PATH: {shown(folder)} holds {listed}, found before torch's own"
            advice = "Unset it for training: torch's wheels bring the versions that they need."
            problems.append(Problem("warn", what, advice))
        else:
            facts.append(shown(folder))
    harmless = [f"LD_LIBRARY_PATH: {', '.join(facts)}: nothing of torch's in it"] if facts else []
    none = [] if problems else ["neither LD_PRELOAD nor LD_LIBRARY_PATH is set"]
    return judged("libraries", harmless or none, problems)
