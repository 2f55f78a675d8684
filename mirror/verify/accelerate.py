"""How N processes are started through accelerate: one command line, with everything stated.

A user's own accelerate configuration, a busy port, a foreign interpreter or a scheduler's variables
have no say: `mirror verify` and `mirror run` start the same thing. The launcher itself ends with
exit code 1 whatever happened: what became of the ranks stands in its log.
"""

from __future__ import annotations

import errno
import json
import os
import random
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror.core.artifact import Json

#: What a scheduler, another launcher or a user's shell may say of who is who among the processes,
#: and what would change the launcher's own arguments or interpreter.
_FOREIGN = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME|MASTER_(ADDR|PORT)|PYTHON_EXEC"
    r"|TORCHELASTIC_.*|PET_(?!SHUTDOWN_TIMEOUT$).*|(PMI|PMIX|OMPI|MV2|MPI)_.*"
)

#: Between those that mirror's nodes meet on under Slurm and those of connections.
_PORTS = range(30_000, 32_768)

#: Says that a process is to run on the CPU. With `--multi_gpu` it is how accelerate runs several
#: CPU processes that know of each other: `--cpu` runs one.
ON_CPU = {"ACCELERATE_USE_CPU": "true", "CUDA_VISIBLE_DEVICES": ""}


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Where the launchers of several nodes meet: on node 0, by its IPv4 address and a free port.

    node: this one's number, of `nodes`.
    """

    nodes: int
    node: int
    address: str
    port: int


def line(
    python: Path,
    processes: int,
    *,
    precision: str,
    folder: Path,
    settings: Mapping[str, Json] | None = None,
    rendezvous: Rendezvous | None = None,
) -> list[str]:
    """The command line up to the script's name, or up to `-m` and a module's.

    processes: at least two, on this machine; on GPUs or on the CPU, as `environ` says.
    rendezvous: with other nodes, as many processes on each; then one here is enough.
    precision: "no", "fp16" or "bf16": what a script gets that names none itself.
    folder: for accelerate.json, which is written here, and for log/ATTEMPT/attempt_0/RANK/std*.log,
    which the ranks write. settings: further tables of accelerate's configuration, such as
    {"distributed_type": "FSDP", "fsdp_config": {...}}.
    Raises OSError when the folder cannot be written.
    """
    nodes = rendezvous.nodes if rendezvous else 1
    world = processes * nodes
    config: dict[str, Json] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MULTI_GPU",
        "num_machines": nodes,
        "num_processes": world,
        "mixed_precision": precision,
        "use_cpu": False,
        **(settings or {}),
    }
    file = folder / "accelerate.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    kind = "--use_fsdp" if config["distributed_type"] == "FSDP" else "--multi_gpu"
    port = rendezvous.port if rendezvous else free_port()
    launcher = [
        *(str(python), "-m", "accelerate.commands.launch"),
        *("--config_file", str(file), kind, "--num_machines", str(nodes)),
        *("--num_processes", str(world), "--mixed_precision", precision),
        *("--dynamo_backend", "no", "--main_process_port", str(port)),
        *("--log_dir", str(folder / "log")),
    ]
    if rendezvous:
        launcher += ["--machine_rank", str(rendezvous.node), "--same_network"]
        launcher += ["--main_process_ip", rendezvous.address, "--rdzv_backend", "static"]
    return launcher


def environ(table: Mapping[str, str], processes: int, *, gpu: bool) -> dict[str, str]:
    """The launcher's variables, which every rank inherits: `table`'s, and what must be so.

    gpu: on the first `processes` GPUs of those that `table` shows; else on the CPU. OMP_NUM_THREADS
    is as `table` says, if it does.
    """
    found = {
        "OMP_NUM_THREADS": str(_threads(processes)),
        **alone(table),
        # Each rank's output into files of its own. accelerate has no option for it, torch reads
        # this; its --tee would have every line in the launcher's log as well.
        "PET_REDIRECTS": "3",
        # Not SIGHUP, which torch would handle even where nohup has it ignored.
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT",
    }
    if not gpu:
        return found | ON_CPU
    visible = table.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(n) for n in range(processes)]
    return found | {"CUDA_VISIBLE_DEVICES": ",".join(devices[:processes])}


def alone(table: Mapping[str, str]) -> dict[str, str]:
    """The variables of one process that no launcher starts: nothing says that it is one of many."""
    return {name: value for name, value in table.items() if not _FOREIGN.fullmatch(name)}


def _threads(count: int) -> int:
    """Threads of arithmetic a process: half the cores between them, since others live here too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(8, (cores or 1) // 2 // count))


def exit_codes(log: Path) -> dict[int, int]:
    """Local rank -> exit code, of those that failed by themselves, as the launcher's log tells.

    The rank that failed first comes first; the code is -N for signal N.
    """
    text = log.read_text(encoding="utf-8", errors="replace")
    seen = re.findall(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", text)
    codes = {int(rank): int(code) for code, rank in seen}
    first = re.search(
        r"^Root Cause \(first observed failure\):\n\[\d+\]:\n(?:  .*\n)*?"
        r"  rank +: \d+ \(local_rank: (\d+)\).*\n  exitcode +: (-?\d+) ",
        text,
        re.MULTILINE,
    )
    return {int(first[1]): int(first[2])} | codes if first else codes


def free_port(address: str = "127.0.0.1") -> int:
    """A port of this machine's address that nothing listens on. Raises OSError.

    The launcher takes it seconds later, when torch is imported. So it is none of those that the
    system gives to connections meanwhile (32768 and up, where nobody has changed that).
    """
    for port in random.sample(_PORTS, 100):
        with socket.socket() as listener:
            try:
                listener.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    with socket.socket() as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])
