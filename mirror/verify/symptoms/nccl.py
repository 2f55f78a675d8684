"""NCCL: what it says in its WARN lines, and in the "Last error" of torch's exception."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="nccl-no-kernel",
        name="This NCCL has no code for this GPU",
        patterns=(
            "exceeds device/fn maxSharedMem",
            "Cuda failure*no kernel image is available for execution on the device",
        ),
        cause="NCCL was built before this GPU: 2.25 and 2.26.2 have no code for Blackwell (sm_100,"
        " sm_120), and crash from messages of 512 KiB on. No variable adds the code.",
        advice="Build again with `target.gpus: [sm_120]` and `target.cuda`: `mirror build` then"
        " refuses such a set. torch 2.8 and newer bring an NCCL with the code; with torch 2.7 ask"
        " for nvidia-nccl-cu12==2.26.2.post1 under `wheels.requirements`.",
        hides=("no-kernel-image", "nccl-illegal-access", "illegal-access", "nccl-cuda-error"),
        source="nccl-tests 287",
    ),
    Entry(
        key="nccl-illegal-access",
        name="A collective touched memory that is not its own",
        patterns=(
            "Cuda failure*an illegal memory access was encountered",
            "watchdog thread terminated*an illegal memory access was encountered",
        ),
        cause="If one GPU alone is fine: on RTX 50 and RTX PRO (sm_120) an NCCL without code for"
        " it (2.26.2), or peer access or shared memory that does not work on this machine. If one"
        " GPU dies, too, it is the script's.",
        advice="Look at the NCCL that `mirror verify` shows: 2.26.2 on sm_120 must be replaced"
        " (torch 2.8 and newer). Else `mirror verify --gpus N` finds the setting that works and"
        " what it costs; `mirror run` applies it. By hand: NCCL_P2P_DISABLE=1, then"
        " NCCL_SHM_DISABLE=1.",
        rungs=("p2p-off", "shm-off", "cumem-host-off"),
        hides=("illegal-access", "nccl-cuda-error"),
        source="nccl 2418, nccl 1852, pytorch 152780",
    ),
    Entry(
        key="nccl-memory",
        name="The GPU's memory was full when NCCL wanted its buffers",
        patterns=("Cuda failure*'out of memory'", "NCCL WARN Failed to CUDA calloc"),
        cause="NCCL allocates beside torch's pool, hundreds of megabytes a communicator; the"
        " model, or another process, had taken the rest. NCCL 2.26.2 also reported it without"
        " need.",
        advice="Halve the batch; look at nvidia-smi for other processes."
        " torch.cuda.set_per_process_memory_fraction(0.9) leaves room. With memory to spare: torch"
        " 2.8 or newer.",
        rungs=("nvls-off",),
        hides=("gpu-memory", "nccl-cuda-error"),
        source="pytorch 152302, returnn 1626",
    ),
    Entry(
        key="nccl-shm-denied",
        name="NCCL may not write to /dev/shm",
        patterns=(
            "shm_open failed : Permission denied",
            "shared memory*/dev/shm/nccl*Permission denied",
        ),
        cause="This user may not create files in /dev/shm.",
        advice="As root: chmod 1777 /dev/shm. Until then NCCL_SHM_DISABLE=1.",
        rungs=("shm-off",),
        hides=("nccl-shm-full", "nccl-system-error"),
        source="pytorch 37004",
    ),
    Entry(
        key="nccl-shm-full",
        name="NCCL found no room in /dev/shm",
        patterns=(
            "Error while creating shared memory segment",
            "failed to extend /dev/shm/nccl",
            "Failed to extend /dev/shm/nccl",
            "failed to create shared memory file",
            "posix_fallocate failed : No space left on device",
        ),
        cause="Ranks of one machine exchange data through /dev/shm, and a container has 64 MiB of"
        " it by default; NCCL takes up to 10 MB for each connection of two ranks.",
        advice="Start the container with --shm-size=8g or --ipc=host; outside, as root: mount -o"
        " remount,size=16G /dev/shm. Remove what killed runs left: rm /dev/shm/nccl-*. Until then"
        " NCCL_SHM_DISABLE=1.",
        rungs=("shm-off",),
        hides=("nccl-system-error", "nccl-cuda-error", "disk-full"),
        source="torchtitan 853, nccl 290, nccl 1518",
    ),
    Entry(
        key="nccl-shm-attach",
        name="A rank cannot open another rank's shared memory",
        patterns=("Error while attaching to shared memory segment",),
        cause="The ranks run in containers with a /dev/shm each; or NCCL's newer way of sharing"
        " host memory works for some ranks only (NUMA nodes without CPUs or memory).",
        advice="Start the containers with --ipc=host. If there is one /dev/shm only:"
        " NCCL_CUMEM_HOST_ENABLE=0.",
        rungs=("cumem-host-off", "shm-off"),
        hides=("nccl-system-error",),
        source="nccl 2190",
    ),
    Entry(
        key="nccl-cumem-host",
        name="NCCL's way of sharing host memory does not work here",
        patterns=("transport/shm.cc*NCCL WARN Cuda failure", "ncclCuMemHostEnable"),
        cause="Since 2.24 NCCL shares host memory through CUDA (cuMem). It fails on GPUs without"
        " peer access, and on machines or containers with odd NUMA nodes.",
        advice="NCCL_CUMEM_HOST_ENABLE=0 goes back to /dev/shm, which then wants 1 GiB; `mirror"
        " verify --gpus N` shows whether that costs bandwidth.",
        rungs=("cumem-host-off", "shm-off"),
        hides=("nccl-peer-access", "nccl-cuda-error", "segmentation-fault"),
        source="nccl 1838, nccl 2106",
    ),
    Entry(
        key="nccl-peer-access",
        name="The GPUs cannot reach each other's memory",
        patterns=(
            "peer access is not supported between these two devices",
            "NCCL WARN failed to peer with device",
        ),
        cause="NCCL chose peer access, and the driver refuses it between these two: GPUs without"
        " it (GeForce), a virtual machine, or the IOMMU.",
        advice="NCCL_P2P_DISABLE=1 sends through host memory instead; `mirror verify --gpus N`"
        " shows the peer matrix, and what it costs.",
        rungs=("p2p-nvl", "p2p-off"),
        hides=("nccl-cuda-error",),
        source="nccl 1838",
    ),
    Entry(
        key="nccl-nvlink-disabled",
        name="GPUs are joined by NVLink and peer access is off",
        patterns=("P2P is disabled between NVLINK connected GPUs",),
        cause="The driver reports a link and refuses to use it: a hardware fault, a link that was"
        " not trained, or Fabric Manager.",
        advice="nvidia-smi nvlink -s and nvidia-smi topo -p2p r show which pair. Have the machine"
        " rebooted. NCCL_IGNORE_DISABLED_P2P=1 goes on without the link.",
        rungs=("p2p-off",),
        hides=("nccl-cuda-error",),
        source="NCCL's own words",
    ),
    Entry(
        key="nccl-nvls",
        name="NVLink SHARP (NVLS) does not work here",
        patterns=(
            "configuration error in the Fabric Manager or NVSwitches",
            "transport/nvls.cc*NCCL WARN",
        ),
        cause="The switches' multicast could not be set up: Fabric Manager wants a restart, or the"
        " machine (a virtual one, often) was given a part of the switch only.",
        advice="NCCL_NVLS_ENABLE=0 does without; `mirror verify --gpus N` shows what that costs."
        " As root: systemctl restart nvidia-fabricmanager while no job runs, or reboot.",
        rungs=("nvls-off",),
        hides=("nccl-cuda-error", "nccl-system-error"),
        source="pytorch 177472, nccl 1788, nccl 1672",
    ),
    Entry(
        key="nccl-duplicate-gpu",
        name="Two ranks use the same GPU",
        patterns=("Duplicate GPU detected",),
        cause="More processes than GPUs, a script that puts every rank on cuda:0, Ray actors that"
        " were not given a GPU each, or two MIG parts of one GPU.",
        advice="In the script call torch.cuda.set_device(LOCAL_RANK) before the process group, or"
        " use accelerator.device; start at most as many processes as there are GPUs. NCCL does not"
        " join MIG parts.",
        hides=("nccl-usage-error",),
        source="verl 161",
    ),
    Entry(
        key="nccl-version-mismatch",
        name="The ranks run different versions of NCCL",
        patterns=("Mismatched NCCL version detected", "NCCL version mismatch with remote"),
        cause="The machines' environments differ, or another libnccl comes first on one of them"
        " (LD_LIBRARY_PATH, LD_PRELOAD).",
        advice="Install the same bundle on all machines and compare `mirror list`; unset"
        " LD_LIBRARY_PATH and LD_PRELOAD. `mirror verify` names every libnccl that it sees.",
        source="NCCL's own words",
    ),
    Entry(
        key="nccl-no-interface",
        name="NCCL finds no network interface to meet on",
        patterns=("Bootstrap : no socket interface found",),
        cause="NCCL_SOCKET_IFNAME names one that is not here, or all are excluded; with lo down"
        " even one machine's ranks cannot meet.",
        advice="ip -br addr lists them. Unset NCCL_SOCKET_IFNAME on one machine; for several set"
        " it to the one with the address that the others reach. As root: ip link set lo up.",
        source="NCCL's own words",
    ),
    Entry(
        key="nccl-memlock",
        name="InfiniBand may not lock enough memory",
        patterns=("NCCL WARN Call to ibv_*Cannot allocate memory",),
        cause="The limit on locked memory is too low for the adapter's buffers (RLIMIT_MEMLOCK).",
        advice="ulimit -l shows it; unlimited is wanted: in /etc/security/limits.d, in Slurm's"
        " LimitMEMLOCK, or --ulimit memlock=-1 for a container. On one machine NCCL_IB_DISABLE=1.",
        rungs=("ib-off",),
        hides=("nccl-ib", "nccl-system-error", "host-memory"),
        source="NCCL's manual on troubleshooting",
    ),
    Entry(
        key="nccl-ib",
        name="InfiniBand or RoCE fails",
        level="general",
        patterns=(
            "NCCL WARN NET/IB*Got completion from peer",
            "NCCL WARN NET/IB*Got async event",
            "NCCL WARN Call to ibv_",
        ),
        cause="The adapter reports an error: a link that is down, a wrong GID for RoCE, or a rank"
        " that has ended.",
        advice="ibstat shows the links; NCCL_IB_HCA picks the adapters, NCCL_IB_GID_INDEX=3 is"
        " RoCE v2's usual one. On one machine NCCL_IB_DISABLE=1 costs nothing; between machines it"
        " falls back to sockets.",
        rungs=("ib-off",),
        hides=("nccl-system-error", "nccl-remote"),
        source="nccl 1052",
    ),
    Entry(
        key="nccl-system-error",
        name="A system call failed in NCCL",
        level="general",
        patterns=("unhandled system error", "ncclSystemError"),
        cause="A socket, shared memory or a device failed; the reason stands in NCCL's own log.",
        advice="Run again with NCCL_DEBUG=INFO and look for the first WARN. /dev/shm (df -h"
        " /dev/shm) and ulimit -n are the usual reasons; `mirror verify --gpus N` looks at both.",
        rungs=("cumem-host-off", "shm-off", "ib-off"),
        source="NCCL's own words",
    ),
    Entry(
        key="nccl-usage-error",
        name="NCCL was called wrongly",
        level="general",
        patterns=("ncclInvalidUsage", "ncclInvalidArgument"),
        cause="The ranks' calls do not fit together; the reason stands in NCCL's own log.",
        advice="Run again with NCCL_DEBUG=WARN; TORCH_DISTRIBUTED_DEBUG=DETAIL names the call.",
        source="NCCL's own words",
    ),
    Entry(
        key="nccl-cuda-error",
        name="A CUDA call failed in NCCL",
        level="general",
        patterns=("unhandled cuda error", "ncclUnhandledCudaError", "NCCL WARN Cuda failure"),
        cause="The driver refused what NCCL asked for; the reason is in the line after `Last"
        " error`.",
        advice="Run again with NCCL_DEBUG=INFO and look for the first WARN; `mirror verify --gpus"
        " N` tries the settings that help.",
        rungs=("p2p-nvl", "p2p-off", "cumem-host-off", "shm-off", "nvls-off"),
        source="NCCL's own words",
    ),
    Entry(
        key="nccl-connect",
        name="NCCL cannot connect to another machine",
        level="general",
        patterns=(
            "NCCL WARN*connect to*exceeded error retry count",
            "NCCL WARN socketPollConnect to",
            "NCCL WARN*Call to connect*failed",
            "NCCL WARN*No route to host",
        ),
        cause="The wrong interface was chosen, a firewall is between the machines, or the other"
        " rank has ended.",
        advice="Set NCCL_SOCKET_IFNAME to the interface that the machines share, and let all ports"
        " between them through. On one machine: NCCL_SOCKET_IFNAME=lo.",
        source="NCCL's own words",
    ),
    Entry(
        key="nccl-remote",
        name="Another rank has ended (NCCL)",
        level="echo",
        patterns=(
            "remote process exited or there was a network error",
            "ncclRemoteError",
            "Connection closed by remote peer",
        ),
        cause="The connection to another rank broke, because its process ended or its network did.",
        advice="Look at the log of the rank that ended first, above all its last lines.",
        source="NCCL's own words",
    ),
)
