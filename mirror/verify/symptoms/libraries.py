"""Shared libraries: missing, too old, of another build."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="nccl-symbol",
        name="torch met another NCCL than its own",
        patterns=("undefined symbol: nccl",),
        cause="An older libnccl is loaded first: the system's, one on LD_LIBRARY_PATH or in"
        " LD_PRELOAD, or a second nvidia-nccl wheel in the environment.",
        advice="unset LD_LIBRARY_PATH LD_PRELOAD and try again. `mirror verify` names every"
        " libnccl; on the builder keep nvidia-nccl out of `wheels.requirements`, so that torch's"
        " own is taken.",
        hides=("undefined-symbol",),
        source="pytorch 186591, pytorch 119932",
    ),
    Entry(
        key="cuda-symbol",
        name="torch met another CUDA's libraries than its own",
        patterns=(
            "undefined symbol: __nvJitLink",
            "symbol __nvJitLink",
            "undefined symbol: cuda",
            "undefined symbol: cublas",
            "undefined symbol: cusparse",
            "undefined symbol: cudnn",
        ),
        cause="A CUDA toolkit on LD_LIBRARY_PATH (/usr/local/cuda) hides the libraries that torch"
        " brings in its nvidia-* wheels.",
        advice="unset LD_LIBRARY_PATH and try again: torch's wheels need no toolkit. `mirror"
        " verify` says when it is set.",
        hides=("undefined-symbol",),
        source="pytorch 111469, pytorch 134929",
    ),
    Entry(
        key="torch-symbol",
        name="An extension was compiled for another torch",
        patterns=(
            "undefined symbol: _ZN3c10",
            "undefined symbol: _ZNK3c10",
            "undefined symbol: _ZN2at",
            "undefined symbol: _ZNK2at",
            "undefined symbol: _ZN5torch",
            "undefined symbol: _ZNK5torch",
        ),
        cause="Wheels with CUDA code (flash-attn, xformers, deepspeed's, apex) fit exactly one"
        " torch version and C++ ABI, and this torch is another.",
        advice="On the builder pin both in `wheels.requirements`, torch and the wheel that is made"
        " for it (its name has torchX.Y and cxx11abi in it), and build again. If the server"
        " provides torch, its exact version belongs into `target.provided`.",
        hides=("undefined-symbol",),
        source="flash-attention 940",
    ),
    Entry(
        key="mkl-symbol",
        name="torch met a newer MKL",
        patterns=("undefined symbol: iJIT_NotifyEvent",),
        cause="A torch that uses the environment's own MKL (conda's) was built before MKL 2024.1,"
        " which has taken a function away.",
        advice='On the builder add "mkl<2024.1" to `conda.packages` and build again.',
        hides=("undefined-symbol",),
        source="pytorch 123097",
    ),
    Entry(
        key="glibc",
        name="This system's C library is too old for a wheel",
        patterns=("version `GLIBC_*' not found",),
        cause="The wheel, or a program that was copied here, was built on a newer Linux.",
        advice="On the builder set `target.glibc` to what `mirror probe` says of this server (ldd"
        " --version) and build again: only wheels that fit are then chosen.",
        source="glibc's own words",
    ),
    Entry(
        key="glibcxx",
        name="A C++ library is too old",
        patterns=("version `GLIBCXX_*' not found", "version `CXXABI_*' not found"),
        cause="An older libstdc++ was loaded first: the system's where the environment has a newer"
        " one (conda), or the other way round.",
        advice="Put the environment's first: export LD_LIBRARY_PATH=$CONDA_PREFIX/lib. Without one"
        " add libstdcxx-ng to `conda.packages` and build again.",
        source="pytorch 157709, pytorch 87279",
    ),
    Entry(
        key="cuda-library-missing",
        name="A CUDA library is missing",
        patterns=(
            "libcudart.so*: cannot open shared object file",
            "libcudnn*: cannot open shared object file",
            "libcublas*: cannot open shared object file",
            "libcufft.so*: cannot open shared object file",
            "libcurand.so*: cannot open shared object file",
            "libcusparse*: cannot open shared object file",
            "libcupti.so*: cannot open shared object file",
            "libnvrtc*: cannot open shared object file",
            "libnvJitLink*: cannot open shared object file",
            "libnccl.so*: cannot open shared object file",
            "Error loading*libtorch_cuda.so",
        ),
        cause="A wheel was built for a CUDA whose libraries are not here: for another version than"
        " torch's, or the nvidia-* wheels were left out. The CUDA that nvidia-smi shows is what"
        " the driver can do, not what is installed.",
        advice="Take a wheel for torch's CUDA (`mirror verify` shows it; +cu128 is 12.8), or add"
        " the missing nvidia-* wheel to `wheels.requirements`, and build again. An extension may"
        " need `import torch` before it.",
        hides=("library-missing",),
        source="the dynamic loader's own words",
    ),
    Entry(
        key="opengl-missing",
        name="OpenCV wants a desktop's libraries",
        patterns=(
            "libGL.so.1: cannot open shared object file",
            "libgthread-2.0.so.0: cannot open shared object file",
        ),
        cause="opencv-python draws windows; a server has no libGL.",
        advice="On the builder replace opencv-python by opencv-python-headless and build again.",
        hides=("library-missing",),
        source="the dynamic loader's own words",
    ),
    Entry(
        key="numpy-abi",
        name="A package was compiled for another NumPy",
        patterns=(
            "A module that was compiled using NumPy 1.x cannot be run in",
            "numpy.dtype size changed, may indicate binary incompatibility",
            "RuntimeError: Numpy is not available",
        ),
        cause="NumPy 2 changed what compiled packages see of it; one here is older than that.",
        advice='On the builder add "numpy<2" to `wheels.requirements`, or a newer version of the'
        " package that the traceback names, and build again.",
        source="NumPy's own words",
    ),
    Entry(
        key="torchvision-mismatch",
        name="torchvision and torch do not belong together",
        patterns=("operator torchvision::nms does not exist",),
        cause="Each torchvision is made for exactly one torch, of the same CUDA.",
        advice="Ask for both in `wheels.requirements`, from the same index, and build again; or,"
        " if the server provides torch, for the torchvision that belongs to it.",
        source="pytorch 157648, vision 8985",
    ),
    Entry(
        key="bitsandbytes",
        name="bitsandbytes has no library for this CUDA",
        patterns=(
            "CUDA Setup failed despite GPU being available",
            "Configured CUDA binary not found at",
        ),
        cause="The wheel brings a library for each CUDA version up to its own day; torch's is"
        " newer, or none was found.",
        advice="On the builder ask for a newer bitsandbytes. BNB_CUDA_VERSION=124 takes the"
        " library of another version of the same major.",
        source="bitsandbytes' own words",
    ),
    Entry(
        key="undefined-symbol",
        name="Two libraries do not belong together",
        level="general",
        patterns=("undefined symbol: ",),
        cause="A compiled package calls a function that the library which was found does not have:"
        " one is older than the other was built for.",
        advice="unset LD_LIBRARY_PATH LD_PRELOAD and try again. If it stays, pin the two packages"
        " that the message names to versions that belong together, and build again.",
        source="the dynamic loader's own words",
    ),
    Entry(
        key="library-missing",
        name="A system library is missing",
        level="general",
        patterns=(
            "ImportError: lib*: cannot open shared object file",
            "OSError: lib*: cannot open shared object file",
            "error while loading shared libraries: ",
        ),
        cause="A package uses a library of the operating system that is not installed here.",
        advice="Ask the administrator for it, or add the conda package that has it to"
        " `conda.packages` and build again.",
        source="the dynamic loader's own words",
    ),
)
