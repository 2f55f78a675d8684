"""Files, disks, shared memory, limits."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="dataloader-bus-error",
        name="A DataLoader worker found no room in /dev/shm",
        patterns=("Unexpected bus error encountered in worker", "is killed by signal: Bus error"),
        cause="Workers hand batches over through /dev/shm; it is full, and a container has 64 MiB"
        " of it by default.",
        advice="Start the container with --shm-size=8g or --ipc=host; outside, as root: mount -o"
        " remount,size=16G /dev/shm. Until then num_workers=0.",
        hides=("bus-error", "dataloader-killed", "shm-full"),
        source="pytorch 5040",
    ),
    Entry(
        key="shm-full",
        name="Shared memory (/dev/shm) is full",
        patterns=(
            "unable to write to file </torch_*No space left on device",
            "unable to allocate shared memory(shm) for file",
            "No space left on device: '/dev/shm",
            "torch_*shm*No space left on device (28)",
        ),
        cause="torch's processes share tensors through /dev/shm, and a container has 64 MiB of it"
        " by default. The disks are not meant.",
        advice="df -h /dev/shm. Start the container with --shm-size=8g or --ipc=host; as root:"
        " mount -o remount,size=16G /dev/shm; remove what killed jobs left there (rm"
        " /dev/shm/torch_*).",
        hides=("disk-full",),
        source="torch's own words",
    ),
    Entry(
        key="dataloader-killed",
        name="The system killed a DataLoader worker",
        patterns=("is killed by signal: Killed",),
        cause="The machine, or the job's share of it, ran out of memory: each worker holds a copy"
        " of what the dataset keeps in Python objects.",
        advice="Fewer workers and a smaller prefetch_factor; keep data in arrays or memory-mapped"
        " files. dmesg | grep -i oom, as root, confirms it; under Slurm ask for more with --mem.",
        hides=("killed",),
        source="torch's own words",
    ),
    Entry(
        key="open-files",
        name="Too many files are open",
        patterns=("Too many open files", "received 0 items of ancdata"),
        cause="Each tensor that a worker hands over is an open file, and so is each connection;"
        " the usual limit is 1,024.",
        advice="ulimit -n 65536 before the job (as root in /etc/security/limits.d), or"
        " torch.multiprocessing.set_sharing_strategy('file_system').",
        source="pytorch 973, pytorch 11201, pytorch 14768",
    ),
    Entry(
        key="disk-quota",
        name="The user's share of the disk is used up",
        patterns=("Disk quota exceeded",),
        cause="The file system limits each user's space or number of files, home folders above"
        " all.",
        advice="quota -s, or du -sh ~/.cache ~/* shows what takes it. Write checkpoints elsewhere;"
        " `mirror gc` frees old generations, MIRROR_ROOT may lie on another disk.",
        hides=("disk-full",),
        source="the kernel's own words",
    ),
    Entry(
        key="disk-full",
        name="A disk is full",
        patterns=("No space left on device",),
        cause="There is no room, or there are no inodes, where the job writes: checkpoints, /tmp,"
        " a compile cache.",
        advice="df -h and df -i show which; keep fewer checkpoints (save_total_limit), set TMPDIR,"
        " TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR to a larger disk. `mirror gc` frees old"
        " generations.",
        source="the kernel's own words",
    ),
    Entry(
        key="cache-not-writable",
        name="A cache cannot be written",
        patterns=(
            "Read-only file system",
            "Permission denied: '*/hub",
            "Permission denied: '*cache",
            "Permission denied: '*huggingface",
            "There was a problem when trying to write in your cache folder",
        ),
        cause="The installed models are read-only, shared by all users; a program wants to write"
        " beside them, or into a home folder that cannot be written.",
        advice="Start the job with `mirror run`, which gives the code that models bring a folder"
        " of the user's. For the others set HF_DATASETS_CACHE, TRITON_CACHE_DIR and XDG_CACHE_HOME"
        " to a folder of yours.",
        source="transformers' own words",
    ),
    Entry(
        key="host-memory",
        name="The machine's memory is full",
        patterns=(
            "DefaultCPUAllocator: can't allocate memory",
            "DefaultCPUAllocator: not enough memory",
            "Cannot allocate memory",
            "std::bad_alloc",
            "Out of memory: Killed process",
            "oom_kill",
            "oom-kill",
        ),
        cause="The job needs more memory than the machine, or the scheduler's or container's share"
        " of it, has. Every rank that loads the whole model takes its size once more.",
        advice="free -h; load with low_cpu_mem_usage=True or, under FSDP,"
        " cpu_ram_efficient_loading; fewer DataLoader workers. Under Slurm --mem=0 asks for all of"
        " a node's.",
        hides=("killed",),
        source="torch's, the kernel's and Slurm's own words",
    ),
    Entry(
        key="encoding",
        name="The server's locale is not UTF-8",
        patterns=("'ascii' codec can't encode", "'ascii' codec can't decode"),
        cause="Python reads and prints text as the locale says, and without one that is ASCII.",
        advice="export LANG=C.UTF-8 PYTHONUTF8=1, or open(path, encoding='utf-8') in the script.",
        source="Python's own words",
    ),
    Entry(
        key="file-missing",
        name="A file of the job is not there",
        level="general",
        patterns=("FileNotFoundError: [Errno 2] No such file or directory",),
        cause="It was not carried, or its path is relative to another folder than the job was"
        " started in.",
        advice="Start the job from the project's folder. Data and configurations can be carried in"
        " `files:`; what the bundle brought lies below $MIRROR_ROOT/current.",
        source="Python's own words",
    ),
    Entry(
        key="network-wanted",
        name="The job wants the network",
        level="general",
        patterns=(
            "Temporary failure in name resolution",
            "Name or service not known",
            "Network is unreachable",
            "Max retries exceeded with url",
            "urlopen error",
        ),
        cause="Something in the script or in a library reaches for an address that this server"
        " does not reach.",
        advice="The traceback names who asked: carry what it wants in `models:`, `datasets:`,"
        " `files:` or `wheels:`, or switch it off. `mirror run` sets the offline variables of the"
        " Hub, pip, uv and wandb.",
        source="the C library's and urllib3's own words",
    ),
)
