"""GPUs: drivers, what torch was built for, memory, hardware."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="fabric-manager",
        name="Fabric Manager is not running (CUDA error 802)",
        patterns=("Error 802:", "system not yet initialized", "cudaErrorSystemNotReady"),
        cause="On a machine with NVSwitch no GPU computes before NVIDIA Fabric Manager, of exactly"
        " the driver's version, has set up the switches.",
        advice="As root: systemctl status nvidia-fabricmanager; start it, or install the package"
        " of the driver's version. `mirror verify` shows its state.",
        hides=("no-gpu-visible",),
        source="pytorch 35710",
    ),
    Entry(
        key="driver-mismatch",
        name="The driver was updated and is not loaded yet",
        patterns=("Driver/library version mismatch", "Error 803:", "cuda driver combination"),
        cause="The kernel still runs the old driver, while its libraries on disk are new; or"
        " another driver's libcuda comes first on LD_LIBRARY_PATH (a container's compat folder).",
        advice="Reboot, or as root unload and load the nvidia modules while nothing uses the GPUs."
        " Compare /proc/driver/nvidia/version with nvidia-smi; unset LD_LIBRARY_PATH and try"
        " again.",
        hides=("no-gpu-visible",),
        source="nvidia-docker 1256",
    ),
    Entry(
        key="forward-compatibility",
        name="CUDA's compatibility libraries do not work on this GPU (error 804)",
        patterns=("Error 804:", "forward compatibility was attempted on non supported HW"),
        cause="A libcuda newer than the driver is on LD_LIBRARY_PATH. That is supported on data"
        " centre GPUs only, not on GeForce and workstation GPUs.",
        advice="Remove the compat folder from LD_LIBRARY_PATH. If torch then finds the driver too"
        " old, build again with `target.driver` set to this driver, so that a fitting torch is"
        " chosen.",
        hides=("no-gpu-visible",),
        source="CUDA's manual on compatibility",
    ),
    Entry(
        key="driver-too-old",
        name="The driver is too old for the CUDA that torch was built for",
        patterns=(
            "The NVIDIA driver on your system is too old",
            "CUDA driver version is insufficient for CUDA runtime version",
        ),
        cause="Each CUDA major version needs a driver of at least a certain version. torch warns,"
        " then goes on on the CPU as if there were no GPU.",
        advice="On the builder set `target.driver` (and `target.cuda`) to what `mirror probe` says"
        " of this server and build again; `mirror build` then refuses a torch that needs more. Or"
        " have the driver updated.",
        hides=("no-gpu-visible", "torch-without-cuda"),
        source="pytorch 162531",
    ),
    Entry(
        key="ptx-too-new",
        name="The driver cannot compile this wheel's PTX",
        patterns=("the provided PTX was compiled with an unsupported toolchain",),
        cause="The wheel has no finished code for this GPU, only PTX, and the PTX comes from a"
        " newer CUDA than the driver knows.",
        advice="Build again with `target.gpus` and `target.driver` set to this server's, so that a"
        " wheel with code for the GPU is chosen; or have the driver updated.",
        source="CUDA's manual on error 222",
    ),
    Entry(
        key="no-kernel-image",
        name="This torch (or extension) has no code for this GPU",
        patterns=(
            "no kernel image is available for execution on the device",
            "is not compatible with the current PyTorch installation",
            "cudaErrorNoKernelImageForDevice",
        ),
        cause="A wheel holds code for a list of architectures, and this GPU's is not on it: too"
        " new for it (sm_120 needs CUDA 12.8), or dropped from it. No setting adds it.",
        advice="On the builder set `target.gpus: [sm_NN]` and `target.cuda`, and build again:"
        " `mirror build` then refuses wheels without code for it. `mirror verify` names the GPU's"
        " sm_NN and what torch was built for.",
        source="pytorch 167244",
    ),
    Entry(
        key="no-driver",
        name="There is no NVIDIA driver here",
        patterns=(
            "Found no NVIDIA driver on your system",
            "libcuda.so.1: cannot open shared object file",
            "couldn't communicate with the NVIDIA driver",
        ),
        cause="Neither the driver's module nor its library is visible: no driver, one that was not"
        " rebuilt for a new kernel, or a container that was started without the GPUs.",
        advice="In a container: start it with --gpus all. Else look at nvidia-smi and `dkms"
        " status` as root; `mirror verify` says what is there.",
        hides=("no-gpu-visible", "cuda-library-missing", "library-missing"),
        source="CUDA's and torch's own words",
    ),
    Entry(
        key="cuda-unknown",
        name="CUDA does not initialise, for no reason that it names",
        patterns=("CUDA unknown error - this may be due to an incorrectly set up environment",),
        cause="Mostly the nvidia-uvm device is missing or may not be opened: the module was lost"
        " (after suspend, after an update), or the container has no /dev/nvidia-uvm.",
        advice="As root: nvidia-modprobe -u -c=0, or modprobe -r nvidia_uvm; modprobe nvidia_uvm."
        " In a container start it anew. CUDA_VISIBLE_DEVICES must be set before torch is imported.",
        hides=("no-gpu-visible",),
        source="torch's own words (error 999)",
    ),
    Entry(
        key="torch-without-cuda",
        name="This torch was built without CUDA",
        patterns=("Torch not compiled with CUDA enabled",),
        cause="A CPU build of torch is installed: from an index of CPU wheels, or resolved for a"
        " platform without CUDA.",
        advice="On the builder set `target.platform` and `target.cuda`, or name an index of CUDA"
        " wheels under `wheels.indexes` with `only: [torch]`, and build again. If the server has a"
        " torch with CUDA, install with `--over ENV` and list it under `target.provided`.",
        source="seen with torch 2.13",
    ),
    Entry(
        key="gpu-lost",
        name="A GPU has dropped out",
        patterns=(
            "NVRM: Xid",
            "has fallen off the bus",
            "GPU is lost",
            "Unable to determine the device handle for GPU",
        ),
        cause="The driver reports a fault of the GPU, its link or its power (an Xid). Programs see"
        " it as a crash or a hang of any kind.",
        advice="As root: dmesg | grep Xid, and nvidia-smi -q. Xid 79 (off the bus) and 48, 63, 64,"
        " 94, 95 (memory) want a reboot, and hardware service when they come back; 13, 31 and 43"
        " are mostly a program's fault. Leave the GPU out with CUDA_VISIBLE_DEVICES until then.",
        hides=("kernel-crash",),
        source="NVIDIA's list of Xid errors",
    ),
    Entry(
        key="ecc-error",
        name="A GPU's memory is defective (ECC)",
        patterns=("uncorrectable ECC error encountered",),
        cause="The GPU's memory gave bits back that could not be corrected.",
        advice="nvidia-smi -q -d ECC,ROW_REMAPPER names the GPU. Rows are replaced at a reset:"
        " have it reset or rebooted; if the count grows again, it wants to be exchanged. Leave it"
        " out with CUDA_VISIBLE_DEVICES until then.",
        source="CUDA's manual on error 214",
    ),
    Entry(
        key="nvlink-error",
        name="An NVLink is defective",
        patterns=("uncorrectable NVLink error",),
        cause="A link between two GPUs, or to a switch, lost data that could not be sent again.",
        advice="nvidia-smi nvlink -e counts the errors by link; have the machine rebooted, and"
        " serviced when they come back. NCCL_P2P_DISABLE=1 goes round the links, at a tenth of"
        " their speed.",
        rungs=("p2p-off",),
        source="CUDA's manual on error 220",
    ),
    Entry(
        key="gpu-busy",
        name="A GPU lets one process in, and another has it",
        patterns=(
            "CUDA-capable device(s) is/are busy or unavailable",
            "all CUDA-capable devices are busy or unavailable",
        ),
        cause="The GPU is in compute mode Exclusive Process and used already, or in MIG mode"
        " without an instance, or the virtual GPU has no licence for compute.",
        advice="nvidia-smi shows who uses it, and nvidia-smi -q -d COMPUTE the mode. As root:"
        " nvidia-smi -c 0 allows several processes.",
        source="pytorch 100691",
    ),
    Entry(
        key="device-ordinal",
        name="A rank asks for a GPU that it does not see",
        patterns=("invalid device ordinal",),
        cause="There are more ranks than visible GPUs, or the script counts GPUs by itself"
        " although CUDA_VISIBLE_DEVICES gives each process only its own, then numbered from 0.",
        advice="Start as many processes as there are visible GPUs (`mirror run --gpus N`), and in"
        " the script use cuda:LOCAL_RANK, or accelerator.device.",
        hides=("nccl-cuda-error",),
        source="torchtitan 423",
    ),
    Entry(
        key="no-gpu-visible",
        name="torch sees no GPU",
        patterns=("No CUDA GPUs are available", "no CUDA-capable device is detected"),
        cause="CUDA_VISIBLE_DEVICES is empty or names GPUs that are not there, or the container or"
        " the scheduler gave the job none.",
        advice="Look at echo $CUDA_VISIBLE_DEVICES and nvidia-smi -L in the same shell; under"
        " Slurm ask with --gres=gpu:N. `mirror verify` compares both.",
        source="torch's own words",
    ),
    Entry(
        key="gpu-memory-shared",
        name="The GPU's memory is full, and another process holds a part of it",
        patterns=("CUDA out of memory*is free. Process *memory in use",),
        cause="Two programs share the GPU: another job, a model server (vLLM takes nine tenths"
        " unless told otherwise), or what a killed run left behind.",
        advice="nvidia-smi names the processes: end what is left over, or give the programs"
        " different GPUs with CUDA_VISIBLE_DEVICES. Where two models must share one, lower vLLM's"
        " gpu_memory_utilization.",
        hides=("gpu-memory",),
        source="torch's own words",
    ),
    Entry(
        key="gpu-memory",
        name="The GPU's memory is full",
        patterns=(
            "CUDA out of memory",
            "CUDA error: out of memory",
            "CUBLAS_STATUS_ALLOC_FAILED",
            "torch.OutOfMemoryError",
        ),
        cause="Model, gradients, optimizer state and activations together need more than the GPU"
        " has.",
        advice="Halve the batch and accumulate gradients instead; train in bf16, with gradient"
        " checkpointing; shard with FSDP. PYTORCH_ALLOC_CONF=expandable_segments:True helps when"
        " much is reserved and little allocated (before torch 2.9: PYTORCH_CUDA_ALLOC_CONF).",
        source="torch's own words",
    ),
    Entry(
        key="device-assert",
        name="An index was out of range on the GPU",
        patterns=("device-side assert triggered",),
        cause="A kernel's own check failed, nearly always an index: a label beyond the number of"
        " classes, or a token beyond the embedding (tokenizer and model do not match). The"
        " traceback shows a later line.",
        advice="The line with `Assertion` above says which check. Run one process on the CPU, or"
        " one on one GPU with CUDA_LAUNCH_BLOCKING=1 (with several GPUs that deadlocks NCCL).",
        source="torch's own words",
    ),
    Entry(
        key="illegal-access",
        name="A GPU kernel touched memory that is not its own",
        patterns=("an illegal memory access was encountered",),
        cause="A bug in a kernel, of the script, of an extension or of a library. It is reported"
        " late, so the traceback shows an innocent line.",
        advice="Run on one GPU with CUDA_LAUNCH_BLOCKING=1. If one GPU is fine and only several"
        " die of it, it is the communication: `mirror verify --gpus N` looks for a setting that"
        " avoids it.",
        rungs=("p2p-off", "shm-off", "cumem-host-off"),
        source="CUDA's manual on error 700",
    ),
    Entry(
        key="kernel-crash",
        name="A GPU kernel crashed",
        patterns=(
            "CUDA error: unspecified launch failure",
            "CUDA error: misaligned address",
            "CUDA error: an illegal instruction was encountered",
            "CUDA error: the launch timed out and was terminated",
        ),
        cause="A bug in a kernel of an extension, code compiled for another GPU, or a failing GPU.",
        advice="Run again on another GPU alone (CUDA_VISIBLE_DEVICES=1): if it is gone, look at"
        " dmesg | grep Xid for the first one. Else run with CUDA_LAUNCH_BLOCKING=1 on one GPU to"
        " find the kernel.",
        source="CUDA's manual on errors 702, 715, 716 and 719",
    ),
    Entry(
        key="cublas-init",
        name="cuBLAS does not start",
        patterns=("CUBLAS_STATUS_NOT_INITIALIZED",),
        cause="Mostly the GPU's memory was full when it wanted its workspace, or an earlier kernel"
        " failed unnoticed; sometimes another CUDA's library comes first on LD_LIBRARY_PATH.",
        advice="Watch memory with nvidia-smi while it starts and halve the batch; unset"
        " LD_LIBRARY_PATH and try again.",
        source="torch's own words",
    ),
    Entry(
        key="cudnn-init",
        name="cuDNN does not start",
        patterns=(
            "CUDNN_STATUS_NOT_INITIALIZED",
            "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
            "Unable to load any of {libcudnn",
            "Could not load library libcudnn",
        ),
        cause="Another cuDNN than the one that torch brings is found first (LD_LIBRARY_PATH,"
        " /usr/local/cuda), or the GPU's memory was full when it wanted its workspace.",
        advice="unset LD_LIBRARY_PATH and try again; then watch memory with nvidia-smi. The wheel"
        " nvidia-cudnn-cu12 must be of the version that torch asks for: `mirror verify` compares.",
        source="torch's own words",
    ),
    Entry(
        key="cuda-after-fork",
        name="CUDA was started before a process forked",
        patterns=("Cannot re-initialize CUDA in forked subprocess",),
        cause="A child that was forked cannot use the CUDA of its parent: a DataLoader worker that"
        " touches the GPU, or multiprocessing without spawn.",
        advice="Keep GPU work out of datasets and collate functions, or use"
        " multiprocessing_context='spawn'.",
        source="torch's own words",
    ),
)
