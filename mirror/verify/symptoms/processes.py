"""How processes end: signals, schedulers. They say that something happened, seldom why."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="time-limit",
        name="The scheduler's time was up",
        patterns=("DUE TO TIME LIMIT",),
        cause="Slurm ends a job that runs longer than it was given.",
        advice="Ask for more with --time, and save checkpoints to go on from (--signal=USR1@300"
        " warns five minutes before).",
        hides=("killed",),
        source="Slurm's own words",
    ),
    Entry(
        key="killed",
        name="A process was killed (SIGKILL)",
        level="general",
        patterns=(
            "Signal 9 (SIGKILL) received by PID",
            "(exitcode: -9)",
            "killed by signal 9 (SIGKILL)",
        ),
        cause="Nearly always the system did it, because memory ran out: the machine's, the"
        " container's or the job's share. It leaves no message of its own. Else somebody, or a"
        " scheduler.",
        advice="As root: dmesg | grep -i -e oom -e killed. free -h while it starts; fewer"
        " DataLoader workers, low_cpu_mem_usage=True; under Slurm --mem=0, in a container"
        " --memory.",
        source="seen with torch 2.13",
    ),
    Entry(
        key="segmentation-fault",
        name="A process crashed in native code (SIGSEGV)",
        level="general",
        patterns=(
            "Signal 11 (SIGSEGV) received by PID",
            "(exitcode: -11)",
            "killed by signal 11 (SIGSEGV)",
            "Segmentation fault",
        ),
        cause="A compiled library went wrong: one that was built for another torch or NumPy, two"
        " OpenMP or CUDA libraries in one process, or NCCL before 2.28 with ulimit -s unlimited.",
        advice="PYTHONFAULTHANDLER=1 shows the Python line. ulimit -s 8192 and unset LD_PRELOAD"
        " LD_LIBRARY_PATH, one at a time; NCCL_CUMEM_HOST_ENABLE=0 if it is in NCCL. `mirror"
        " verify` imports every package in a process of its own.",
        rungs=("cumem-host-off",),
        source="seen with torch 2.13; nccl 2106",
    ),
    Entry(
        key="bus-error",
        name="A process lost memory that it had mapped (SIGBUS)",
        level="general",
        patterns=(
            "Signal 7 (SIGBUS) received by PID",
            "(exitcode: -7)",
            "killed by signal 7 (SIGBUS)",
            "Bus error (core dumped)",
            "Fatal Python error: Bus error",
        ),
        cause="A page of /dev/shm was first used when it was full, or a mapped file (weights on a"
        " network file system) shrank or vanished.",
        advice="df -h /dev/shm; start the container with --shm-size=8g or --ipc=host. NCCL:"
        " NCCL_SHM_DISABLE=1 tells whether it is that.",
        rungs=("shm-off", "cumem-host-off"),
        source="nccl-tests 143",
    ),
    Entry(
        key="hung-up",
        name="The terminal was closed (SIGHUP)",
        level="general",
        patterns=(
            "Signal 1 (SIGHUP) received",
            "Received 1 death signal",
            "Received Signals.SIGHUP death signal",
            "got signal: Signals.SIGHUP",
            "(exitcode: -1)",
        ),
        cause="The SSH connection ended, and torch's launcher ends its ranks on SIGHUP, even under"
        " nohup.",
        advice="Run in tmux, which a bundle can carry (`conda.packages: [tmux]`), or set"
        " PET_SIGNALS_TO_HANDLE=SIGTERM,SIGINT beside nohup.",
        source="torch's own words",
    ),
)
