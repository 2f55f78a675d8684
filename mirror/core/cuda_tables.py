"""Which CUDA goes with what: facts, in one place, each with its source; `cuda` reads them.

When a torch or a CUDA comes out, this is the file to change. Until then `cuda` says that it is not
known to this table, and refuses nothing because of it.
"""

from __future__ import annotations

from collections.abc import Mapping

#: When these tables were last held against their sources.
DATE = "2026-11-30"

#: system -> CUDA major -> the oldest driver that runs it, by minor-version compatibility.
#: Source: NVIDIA, "CUDA Compatibility", table 1; for Windows the CUDA 12 release notes, table 2
#: (those of CUDA 13 state none).
DRIVERS: Mapping[str, Mapping[int, str]] = {
    "linux": {11: "450.80", 12: "525", 13: "580"},
    "win": {11: "452.39", 12: "528.33"},
}

#: The major part of a GPU's architecture -> the oldest driver that knows such a GPU.
#: Inferred: R570 is the first branch that names a Blackwell GPU (B200, RTX 5090).
GPU_DRIVERS: Mapping[int, str] = {10: "570", 12: "570"}

#: platform -> CUDA -> versions of torch whose wheels on the default index are built for it, oldest
#: first. A version that stands only under another platform is built without CUDA on this one.
#: Source: the nvidia-cuda-runtime that each version requires on that index.
TORCH: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "linux-x86_64": {
        "11.7": ("1.13.0", "1.13.1", "2.0.0", "2.0.1"),
        "12.1": (
            *("2.1.0", "2.1.1", "2.1.2", "2.2.0", "2.2.1", "2.2.2"),
            *("2.3.0", "2.3.1", "2.4.0", "2.4.1"),
        ),
        "12.4": ("2.5.0", "2.5.1", "2.6.0"),
        "12.6": ("2.7.0", "2.7.1"),
        "12.8": ("2.8.0", "2.9.0", "2.9.1", "2.10.0"),
        "13.0": ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1"),
        "13.2": ("2.15.0",),
    },
    "linux-aarch64": {
        "13.0": ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1"),
        "13.2": ("2.15.0",),
    },
    "win-amd64": {},
}

_BEFORE_BLACKWELL = (50, 60, 70, 75, 80, 86, 90)
_WITH_BLACKWELL = (75, 80, 86, 90, 100, 120)
_SERVER_ARM = (80, 90, 100, 110, 120)

#: platform -> CUDA -> the architectures that torch's wheels of that CUDA hold code for (90: sm_90).
#: Source: pytorch, .ci/manywheel/build_cuda.sh and build_env_setup.py, and the support matrix in
#: RELEASE.md; Windows is built for the same as Linux x86_64.
ARCHITECTURES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "linux-x86_64": {
        "11.7": (37, 50, 60, 70, 75, 80, 86),
        "11.8": _BEFORE_BLACKWELL,
        "12.1": _BEFORE_BLACKWELL,
        "12.4": _BEFORE_BLACKWELL,
        "12.6": _BEFORE_BLACKWELL,
        "12.8": _WITH_BLACKWELL,
        "12.9": _WITH_BLACKWELL,
        "13.0": _WITH_BLACKWELL,
        "13.2": _WITH_BLACKWELL,
    },
    "linux-aarch64": {"12.6": (80, 90), "13.0": _SERVER_ARM, "13.2": _SERVER_ARM},
}

#: CUDA -> (architecture, first torch, last torch) that its wheels hold besides, on x86_64.
#: Source: pytorch issues 157517 (sm_70 comes back) and 172352 (and goes).
ARCHITECTURES_FOR_A_WHILE: Mapping[str, tuple[int, str, str]] = {
    "12.8": (70, "2.8", "2.10"),
    "12.9": (70, "2.8", "2.10"),
}

#: NCCL -> majors of GPU architectures for which its wheel holds no code.
#: Source: pytorch pull request 151002 (2.26.2.post1 is the same release with sm_100 and sm_120).
NCCL_WITHOUT: Mapping[str, tuple[int, ...]] = {"2.26.2": (10, 12)}

#: Libraries whose file has one name whatever the CUDA: of nvidia-NAME-cu12 and nvidia-NAME-cu13,
#: the one installed last overwrites the other's.
ONE_FILE: Mapping[str, str] = {
    "nccl": "libnccl.so.2",
    "cudnn": "libcudnn.so.9",
    "cusparselt": "libcusparseLt.so.0",
    "nvshmem": "libnvshmem_host.so.3",
}
