"""What Ray's answer comes to, and what on a machine keeps Ray from starting."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mirror.core.paths import masked, shown
from mirror.core.text import counted, human_time
from mirror.verify.host import Machine, network, system
from mirror.verify.report import Check

#: What gRPC reads, in this order, and what keeps an address from the proxy.
_PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
_DIRECT = ("no_grpc_proxy", "no_proxy")
#: Seconds to reach this machine's own address.
_PATIENCE = 3.0


def judge_ray(answer: Mapping[str, Any], tasks: int, *, gpu: bool) -> Iterator[Check]:
    """Whether Ray ran as many tasks at the same time, each where it belongs."""
    up, done, down = answer["seconds"]
    has = ", ".join(f"{name} {count:g}" for name, count in answer["resources"].items())
    yield Check(
        "start",
        "pass",
        f"ray {answer['version']} at {answer['address']} ({has}): up after {human_time(up)},"
        f" stopped after {human_time(down)}",
    )
    rows: Sequence[Mapping[str, Any]] = answer["tasks"]
    took = f"in {human_time(done - up)}, one placement group (PACK)"
    listed = [f"process {row['pid']}" + (f": {shown(_gpu(row))}" if gpu else "") for row in rows]
    distinct = len({row["pid"] for row in rows})
    if distinct < tasks:
        first = f"{tasks} tasks ran in {counted(distinct, 'process')}"
        yield Check("tasks", "fail", "\n".join([first, *listed]), "Report it to Ray's project.")
    elif gpu:
        yield _on_gpus(rows, tasks, [f"{tasks} tasks {took}", *listed])
    else:
        yield Check("tasks", "pass", "\n".join([f"{tasks} tasks {took}", *listed]))


def _gpu(row: Mapping[str, Any]) -> str:
    said = f"CUDA_VISIBLE_DEVICES={row['visible']}"
    return f"{said} {row['uuid']}" + (f" ({row['reason']})" if row["reason"] else "")


def _on_gpus(rows: Sequence[Mapping[str, Any]], tasks: int, lines: Sequence[str]) -> Check:
    """Each on a GPU of its own, by Ray's number, by what CUDA shows, and by UUID where known."""
    numbers = {tuple(row["gpus"]) for row in rows}
    shown_to = {row["visible"] for row in rows}
    uuids = {row["uuid"] for row in rows if row["uuid"]}
    broken = [row for row in rows if row["reason"] and "torch is not in" not in row["reason"]]
    evidence = "\n".join(lines)
    if broken:
        advice = "Look at the stages host and environment: torch cannot use that GPU."
        return Check("tasks", "fail", f"a task could not compute on its GPU\n{evidence}", advice)
    if len(numbers) < tasks or len(shown_to) < tasks or 0 < len(uuids) < tasks:
        advice = (
            "Something sets CUDA_VISIBLE_DEVICES in Ray's workers: look for"
            " RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES, and for a sitecustomize."
        )
        return Check("tasks", "fail", f"tasks share a GPU\n{evidence}", advice)
    if not uuids:
        return Check("tasks", "warn", f"no task has computed on its GPU\n{evidence}")
    return Check("tasks", "pass", evidence)


def small_store(log: str) -> Iterator[Check]:
    """When Ray put its object store on a disk."""
    found = re.search(r"instead of /dev/shm because /dev/shm has only (\d+) bytes", log)
    if found:
        yield Check(
            "object store",
            "warn",
            f"it is in a folder, since /dev/shm has only {int(found[1]):,} bytes free",
            "Ray keeps what tasks hand on there, by default 30 % of the memory: make /dev/shm"
            " larger. In a container: --shm-size=10g or --ipc=host.",
        )


def suspects(here: Machine, environ: Mapping[str, str], tasks: int) -> Iterator[Check]:
    """What is known to keep Ray from starting and is so on this machine: guesses, after a failure.

    environ: that of the process that failed. tasks: processes that were to run.
    """
    yield from proxies(environ)
    yield from _own_address()
    for found in (
        network.check_loopback(here),
        network.check_hostname(here),
        system.check_shared_memory(here),
        system.check_memory(here, tasks),
    ):
        if found.verdict in ("warn", "fail"):
            yield found


def proxies(environ: Mapping[str, str]) -> Iterator[Check]:
    """A proxy that gRPC would ask for this machine's own addresses (known: ray 14350)."""
    named = {n: v for n in _PROXIES for v in (environ.get(n), environ.get(n.upper())) if v}
    direct = next((v for n in _DIRECT if (v := environ.get(n) or environ.get(n.upper()))), "")
    own = sorted(_OWN - {entry.strip() for entry in direct.split(",")})
    if not named or not own:
        return
    said = ", ".join(f"{name}={shown(masked(value))}" for name, value in named.items())
    address = outward_address()
    all_own = ",".join(["127.0.0.1", "localhost", *([address] if address else [])])
    yield Check(
        "proxy",
        "warn",
        f"{said}; no_proxy={shown(direct)} does not name {', '.join(own)}",
        f"Ray's processes speak gRPC to each other, and may ask the proxy for it. In the shell"
        f" that starts the job: export no_proxy={all_own} NO_PROXY={all_own}",
    )


_OWN = {"127.0.0.1", "localhost"}


def outward_address() -> str:
    """The address that Ray takes for this machine; empty where no route leads anywhere.

    A UDP socket is given a peer, which sends nothing: the kernel then says from where it would.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # for documentation (RFC 5737): nobody's
        return str(probe.getsockname()[0])
    return ""


def _own_address() -> Iterator[Check]:
    """Whether this machine reaches itself at that address: a firewall may not let it."""
    address = outward_address()
    if not address:
        return
    try:
        with socket.create_server((address, 0)) as server:
            socket.create_connection(server.getsockname()[:2], timeout=_PATIENCE).close()
    except OSError as error:
        yield Check(
            "own address",
            "warn",
            f"this machine does not reach itself at {address}: {error.strerror or error}",
            "Ray's processes meet there. Let the firewall accept what comes from this machine"
            " itself.",
        )
