"""Python packages, interpreters and compilers."""

from __future__ import annotations

from mirror.verify.symptoms.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    Entry(
        key="accelerate-missing",
        name="accelerate is not in the environment that runs",
        patterns=(
            "accelerate: command not found",
            "accelerate: not found",
            "accelerate-launch: command not found",
            "No module named 'accelerate'",
            "No module named accelerate",
            "requires `accelerate",
        ),
        cause="Another Python runs than the one with the packages: a different conda environment,"
        " or a shell in which nothing is activated.",
        advice="Start it with `mirror run -- accelerate launch train.py`, which takes the"
        " generation's own. If that fails, too, add accelerate to `wheels.requirements` and build"
        " again.",
        hides=("module-missing",),
        source="accelerate's and transformers' own words",
    ),
    Entry(
        key="torch-missing",
        name="torch is not in the environment that runs",
        patterns=("No module named 'torch'", "No module named torch"),
        cause="Another Python runs than the one with the packages; or torch was taken to be"
        " provided by the server, and this environment is not layered over the one that has it.",
        advice="Start it with `mirror run -- python train.py`. If the server provides torch,"
        " install with `--over ENV`; else take torch off `target.provided` and build again.",
        hides=("module-missing",),
        source="Python's own words",
    ),
    Entry(
        key="logger-missing",
        name="The program that logs the training is missing",
        patterns=(
            "No module named 'wandb'",
            "No module named 'tensorboard",
            "No module named 'swanlab'",
            "No module named 'mlflow'",
            "Callback requires*to be installed",
        ),
        cause="The script reports to a program that was not carried.",
        advice="Train without it: report_to='none' in TrainingArguments, log_with=None in"
        " Accelerator. Or add it to `wheels.requirements` and build again; under `verify.imports`"
        ' a `?` ("wandb?") makes it optional.',
        hides=("module-missing",),
        source="transformers' own words",
    ),
    Entry(
        key="flash-attention-missing",
        name="flash-attn is missing",
        patterns=(
            "No module named 'flash_attn",
            "FlashAttention2 has been toggled on, but it cannot be used",
            "not found in your environment: flash_attn",
        ),
        cause="The model asks for FlashAttention, which is a package of its own, compiled for"
        " exactly one torch.",
        advice="Load the model with attn_implementation='sdpa'. Or add the flash-attn wheel for"
        " this torch to `wheels.requirements` and build again.",
        hides=("module-missing", "model-code-packages"),
        source="transformers' own words",
    ),
    Entry(
        key="model-code-packages",
        name="A model's own code needs packages that are missing",
        patterns=("requires the following packages that were not found in your environment",),
        cause="The repository's Python code imports packages that the bundle does not carry.",
        advice="Add those that the message names to `wheels.requirements` and build again.",
        hides=("module-missing",),
        source="transformers' own words",
    ),
    Entry(
        key="module-missing",
        name="A Python module is not found",
        patterns=("ModuleNotFoundError: No module named ",),
        cause="Either it is the project's own package, and the ranks do not start in its folder;"
        " or a package that the bundle does not carry.",
        advice="Start the job from the project's folder with `mirror run`, which sets PYTHONPATH"
        " for every rank. A package from elsewhere: add it to `wheels.requirements`, and to"
        " `verify.imports` so that it is checked, and build again.",
        source="Python's own words",
    ),
    Entry(
        key="python-version",
        name="A package is not for this Python",
        patterns=("requires a different Python:",),
        cause="Its author allows other Python versions only; wheels with C code fit one of them.",
        advice="Set `target.python` to the version that the server is to use and build again; with"
        ' `conda.packages: ["python=3.11"]` the bundle brings its own.',
        source="pip's own words",
    ),
    Entry(
        key="version-conflict",
        name="Two Python packages do not belong together",
        patterns=(
            "ImportError: cannot import name *from '*site-packages",
            "is required for a normal functioning of this module, but found",
        ),
        cause="One package uses something that the installed version of the other does not have:"
        " packages were copied by hand, or installed one by one.",
        advice="Name both in `wheels.requirements` and build again: they are then resolved"
        " together. `mirror verify` says which are not the locked ones.",
        source="transformers' own words",
    ),
    Entry(
        key="compiler-missing",
        name="A C compiler is missing",
        patterns=(
            "Failed to find C compiler",
            "No working C++ compiler found",
            "gcc: command not found",
            "No such file or directory: 'gcc'",
            "No such file or directory: 'g++'",
        ),
        cause="torch.compile, Triton and DeepSpeed compile code when the job runs, and the server"
        " has no gcc.",
        advice="Add gcc and gxx to `conda.packages` and build again, then export CC and CXX to"
        " their paths. Without: TORCHDYNAMO_DISABLE=1 switches torch.compile off.",
        source="ml-cross-entropy 5, torch's own words",
    ),
    Entry(
        key="python-headers-missing",
        name="Python's header files are missing",
        patterns=("Python.h: No such file or directory",),
        cause="Triton compiles a small launcher against Python's C headers, which the system's"
        " Python has in a package of its own (python3-dev).",
        advice="Ask the administrator for python3-dev of this version; or let the bundle bring a"
        ' Python, which has them: `conda.packages: ["python=3.11"]`.',
        source="gcc's own words",
    ),
    Entry(
        key="cuda-toolkit-missing",
        name="A package wants the CUDA toolkit (nvcc)",
        patterns=(
            "CUDA_HOME does not exist",
            "CUDA_HOME environment variable is not set",
            "nvcc: command not found",
            "No such file or directory: '*/bin/nvcc'",
            "unable to compile cuda/cpp extensions without a matching cuda version",
            "Ninja is required to load C++ extensions",
        ),
        cause="DeepSpeed and other packages compile CUDA code when they are used; torch's wheels"
        " bring libraries only, no compiler.",
        advice="Add cuda-nvcc of torch's CUDA version, and ninja, to `conda.packages` and build"
        " again; export CUDA_HOME=$CONDA_PREFIX. Or take a wheel that was compiled on a connected"
        " machine. DeepSpeed: without fused or offloaded optimizers nothing is compiled.",
        source="DeepSpeed's and torch's own words",
    ),
    Entry(
        key="ptxas-too-old",
        name="Triton's assembler does not know this GPU",
        patterns=("is not defined for option 'gpu-name'",),
        cause="The ptxas that Triton uses is older than the GPU: Triton's own, or one that"
        " TRITON_PTXAS_PATH names.",
        advice="unset TRITON_PTXAS_PATH. If it stays, a torch for this GPU's CUDA (12.8 for"
        " sm_120) brings a fitting Triton: set `target.gpus` and build again.",
        source="ptxas' own words",
    ),
    Entry(
        key="carriage-returns",
        name="A script has Windows line ends",
        patterns=(
            "^M: bad interpreter",
            "\\r': command not found",
            "env: *\\r*: No such file or directory",
            "\\r': No such file or directory",
            "cannot execute: required file not found",
        ),
        cause="Each line of the file ends in CR LF, and the CR counts as part of the interpreter's"
        " or the command's name.",
        advice="sed -i 's/\\r$//' FILE. On the laptop: git config core.autocrlf input; `mirror"
        " build` reports such scripts in a bundle.",
        source="seen with bash 5.2",
    ),
    Entry(
        key="illegal-instruction",
        name="This CPU lacks an instruction that a package uses",
        patterns=("Illegal instruction", "(exitcode: -4)", "killed by signal 4 (SIGILL)"),
        cause="A package was compiled for a newer CPU (AVX2, AVX-512), or a virtual machine hides"
        " what the CPU can do.",
        advice="grep -o -m1 'avx[^ ]*' /proc/cpuinfo shows what is there; in a virtual machine set"
        " the CPU model to host. Else take the package from conda, or an older version.",
        source="the kernel's own words",
    ),
)
