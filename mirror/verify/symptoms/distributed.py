"""Ranks: how they meet, and what they give to a collective.

The last entries are what every rank says when another one is gone: they explain nothing.
"""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="collectives-differ",
        name="The ranks do not call the same collective",
        patterns=(
            "essage truncated : received",
            "essage truncated : receiving",
            "Detected mismatch between collectives on ranks",
        ),
        cause="One rank is a step ahead, or sends a tensor of another size: batches of different"
        " number or shape, or a branch that only rank 0 takes.",
        advice="drop_last=True, or accelerate's even_batches; call collectives, save and evaluate"
        " on all ranks. TORCH_DISTRIBUTED_DEBUG=DETAIL names the call that differs.",
        hides=("collective-timeout", "nccl-system-error"),
        source="torch's and NCCL's own words",
    ),
    Entry(
        key="no-backend-for-cpu",
        name="A CPU tensor was given to an NCCL collective",
        patterns=(
            "No backend type associated with device type cpu",
            "Tensors must be CUDA and dense",
        ),
        cause="NCCL moves GPU memory only. A metric, a counter or a loss was left on the CPU.",
        advice="Make it on the rank's device: torch.tensor(x, device=accelerator.device), or use"
        " accelerator.gather. For both kinds: init_process_group('cpu:gloo,cuda:nccl').",
        source="torch's own words",
    ),
    Entry(
        key="gloo-loopback",
        name="This machine's name leads to its loopback address",
        patterns=("Gloo connectFullMesh failed",),
        cause="gloo listens on the address that the host name resolves to. With 127.0.0.1 or"
        " 127.0.1.1 in /etc/hosts, or no name at all, ranks of other machines knock at their own"
        " door.",
        advice="Set GLOO_SOCKET_IFNAME, and NCCL_SOCKET_IFNAME, to the interface with the address"
        " that the others reach (ip -br addr); for vLLM VLLM_HOST_IP, too.",
        hides=("peer-gone",),
        source="vllm 7074",
    ),
    Entry(
        key="host-name",
        name="A host name does not resolve",
        level="general",
        patterns=("network addresses of (*cannot be retrieved (gai error:",),
        cause="There is no DNS, and the launcher looks for a machine, often itself, by name."
        " torchrun --standalone does.",
        advice="As root add the name to /etc/hosts, or give addresses: --master_addr 127.0.0.1 on"
        " one machine. `mirror run --gpus N` does.",
        hides=("rendezvous", "network-wanted"),
        source="pytorch 150532, pytorch 85300",
    ),
    Entry(
        key="port-in-use",
        name="The port is in use",
        patterns=(
            "EADDRINUSE",
            "ddress already in use",
            "Tried to launch distributed communication on port",
        ),
        cause="Another job, or what is left of the last one, listens on the port that the ranks"
        " were to meet at (29500, unless told otherwise).",
        advice="--main_process_port 0 takes a free one (torchrun: --master_port). ss -ltnp shows"
        " who has it. `mirror run --gpus N` always takes a free one.",
        hides=("rendezvous",),
        source="accelerate 3245",
    ),
    Entry(
        key="collective-timeout",
        name="A collective did not end in time",
        level="echo",
        patterns=(
            "Watchdog caught collective operation timeout",
            "Timed out waiting*ms for send operation to complete",
            "Timed out waiting*ms for recv operation to complete",
            "Application timeout caused pair closure",
        ),
        cause="A rank did not come (it died, it loads data, it left the loop earlier), or the GPUs"
        " wait for each other at full load: peer access that does not work (PCIe ACS, the IOMMU,"
        " two RTX 4090).",
        advice="Look for a rank whose log ends otherwise. If all wait in the same collective,"
        " `mirror verify --gpus N` finds the setting that works; by hand NCCL_P2P_DISABLE=1. As"
        " root the cause goes with ACS off, or iommu=pt on the kernel's command line.",
        rungs=("p2p-nvl", "p2p-off", "cumem-host-off", "shm-off"),
        source="nccl-tests 117, nccl 2079",
    ),
    Entry(
        key="rendezvous",
        name="The ranks did not meet in time",
        level="echo",
        patterns=(
            "The client socket has timed out after",
            "The client socket has failed to connect to any network address",
            "seconds waiting for clients",
            "RendezvousTimeoutError",
            "RendezvousConnectionError",
            "wait timeout after*ms, keys:",
        ),
        cause="A rank never came: it died while starting, was not started, or the first rank's"
        " address and port cannot be reached from it.",
        advice="Look for a rank whose log ends otherwise. Between machines: the same --master_addr"
        " (an address, not a name) and port on all, a different rank on each, no firewall between.",
        source="seen with torch 2.13",
    ),
    Entry(
        key="peer-gone",
        name="Another rank has ended",
        level="echo",
        patterns=(
            "Connection closed by peer [",
            "Connection reset by peer. This is typically",
            "Connection was likely closed. Did the remote server shutdown or crash?",
        ),
        cause="The connection to another rank broke, because its process ended.",
        advice="Look at the log of the rank that ended first, above all its last lines.",
        source="seen with torch 2.13",
    ),
)
