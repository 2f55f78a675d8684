"""Ray, vLLM, wandb: programs that a job starts or speaks to."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="wandb-network",
        name="wandb wants its server",
        patterns=(
            "api_key not configured",
            "No API key configured. Use `wandb login`",
            "wandb: Network error",
            "wandb.errors.CommError",
            "wandb.errors.errors.CommError",
        ),
        cause="wandb uploads as the job runs, and asks for a key, unless it is told to stay"
        " offline.",
        advice="WANDB_MODE=offline, which `mirror run` sets; `wandb sync` uploads the folder"
        " later, from a connected machine. WANDB_MODE=disabled keeps nothing.",
        hides=("network-wanted",),
        source="wandb's own words",
    ),
    Entry(
        key="ray-memory",
        name="Ray ended a worker because memory was short",
        patterns=(
            "due to the node running low on memory",
            "Workers (tasks / actors) killed due to memory pressure",
        ),
        cause="Ray watches the machine's memory (not the GPUs') and ends workers at 95 %; in a"
        " container it may take the limit for less than it is.",
        advice="Fewer or smaller workers; RAY_memory_usage_threshold=0.98 moves the limit,"
        " RAY_memory_monitor_refresh_ms=0 switches the watch off.",
        hides=("killed", "ray-start"),
        source="Ray's own words",
    ),
    Entry(
        key="ray-gpus",
        name="Ray has fewer GPUs than the job asks for",
        patterns=(
            "No available node types can fulfill resource request",
            "is less than total desired GPUs",
            "Error: No available node types can fulfill",
        ),
        cause="Ray counts the GPUs when it starts, and what it counted is less: another cluster is"
        " still running, CUDA_VISIBLE_DEVICES was narrower, or the job's numbers do not fit.",
        advice="ray status shows what it has; ray stop, then start anew in the shell with the"
        " right CUDA_VISIBLE_DEVICES. For verl: trainer.n_gpus_per_node.",
        source="Ray's and verl's own words",
    ),
    Entry(
        key="ray-start",
        name="Ray does not start, or cannot be reached",
        patterns=(
            "Failed to connect to GCS",
            "Timed out while waiting for GCS",
            "Can't find a `node_ip_address.json`",
            "The current node timed out during startup",
            "Unable to connect to GCS at",
        ),
        cause="What is left of an earlier cluster is asked (RAY_ADDRESS, /tmp/ray), the address"
        " that Ray chose for this machine is not one it can reach itself, or /tmp is full.",
        advice="ray stop --force; unset RAY_ADDRESS; rm -r /tmp/ray/session_latest; then ray start"
        " --head --node-ip-address 127.0.0.1. `mirror verify` has an optional check that starts"
        " Ray by itself.",
        hides=("connection-refused", "network-wanted"),
        source="ray 28372",
    ),
    Entry(
        key="vllm-memory",
        name="vLLM finds too little free GPU memory",
        patterns=(
            "is less than desired GPU memory utilization",
            "No available memory for the cache blocks",
        ),
        cause="vLLM takes a share of each GPU at once (0.9 by default), and another process, often"
        " the trainer of the same job, has a part of it.",
        advice="Lower gpu_memory_utilization (0.4 beside a trainer), or give it GPUs of its own;"
        " nvidia-smi shows who holds memory.",
        hides=("gpu-memory", "gpu-memory-shared", "vllm-engine"),
        source="vLLM's own words",
    ),
    Entry(
        key="vllm-context",
        name="The context length does not fit vLLM's cache",
        patterns=(
            "is larger than the maximum number of tokens that can be stored in KV cache",
            "which is larger than the available KV cache memory",
        ),
        cause="The model's longest input would need more GPU memory than is left after its"
        " weights.",
        advice="Set max_model_len to what is used; or raise gpu_memory_utilization or"
        " tensor_parallel_size.",
        hides=("vllm-engine",),
        source="vLLM's own words",
    ),
    Entry(
        key="vllm-custom-all-reduce",
        name="vLLM's own all-reduce does not work here",
        patterns=("custom_all_reduce.cuh",),
        cause="It shares GPU memory between processes in a way that expandable_segments does not"
        " allow, nor GPUs without peer access.",
        advice="Take expandable_segments out of PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF, or"
        " pass --disable-custom-all-reduce (disable_custom_all_reduce=True).",
        hides=("vllm-engine", "nccl-cuda-error"),
        source="vllm 42609, vllm 5613",
    ),
    Entry(
        key="vllm-hang",
        name="vLLM's workers wait for each other",
        level="general",
        patterns=("No available shared memory broadcast block found in",),
        cause="A worker does not answer: it compiles for long, it has ended, or NCCL hangs because"
        " peer access does not work on this machine.",
        advice="If it goes on for minutes: NCCL_P2P_DISABLE=1 with --disable-custom-all-reduce."
        " `mirror verify --gpus N` shows the peer matrix and finds the setting.",
        rungs=("p2p-nvl", "p2p-off", "cumem-host-off"),
        hides=("vllm-engine",),
        source="vllm 27313",
    ),
    Entry(
        key="connection-refused",
        name="A service that the job speaks to is not there",
        level="general",
        patterns=("ConnectionRefusedError: [Errno 111]",),
        cause="Nothing listens at the address: Ray, a model server or a database was not started,"
        " has ended, or listens on another port or machine.",
        advice="The traceback names who asked; ss -ltnp shows what listens here. Behind a proxy"
        " set NO_PROXY=127.0.0.1,localhost.",
        source="Python's own words",
    ),
    Entry(
        key="vllm-engine",
        name="vLLM's engine did not start",
        level="echo",
        patterns=("Engine core initialization failed",),
        cause="A worker process failed; it says why further up.",
        advice="Look above the first traceback of an EngineCore or Worker process. With one GPU"
        " and enforce_eager=True the message is often plainer.",
        source="vLLM's own words",
    ),
)
