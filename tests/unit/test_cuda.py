"""What cannot work with a target's CUDA, driver and GPUs is refused by name, with the way out."""

from __future__ import annotations

import pytest

from mirror.core import cuda, cuda_tables
from mirror.core.compat import version
from mirror.core.target import Target


def found(
    *wheels: str,
    platform: str = "linux-x86_64",
    at: str = "",
    driver: str = "",
    gpus: tuple[str, ...] = (),
    provided: tuple[str, ...] = (),
) -> cuda.Findings:
    target = Target(
        python="3.11", platform=platform, cuda=at, driver=driver, gpus=gpus, provided=provided
    )
    named = [wheel.partition("==")[::2] for wheel in wheels]
    return cuda.check(target, [(n, v, f"{n.replace('-', '_')}-{v}-x.whl") for n, v in named])


def only_problem(findings: cuda.Findings) -> str:
    assert len(findings.problems) == 1, findings
    return findings.problems[0]


NOTHING = cuda.Findings((), ())


def test_cuda_newer_than_the_driver_runs_is_refused_with_what_would_do() -> None:
    wheels = ("torch==2.11.0", "nvidia-cuda-runtime==13.0.96", "nvidia-nccl-cu13==2.28.9")
    problem = only_problem(found(*wheels, driver="570.86"))
    assert problem == (
        "torch 2.11.0 is built for CUDA 13.0, which needs driver 580 or newer; the target's is "
        "570.86: take torch from an index of cu129 builds (wheels.indexes) or write torch==2.10.0"
    )
    assert found(*wheels, driver="580.65.06") == NOTHING
    assert found("torch==2.11.0+cu126", driver="525.60.13") == NOTHING
    assert "needs driver 525 or newer" in only_problem(found("torch==2.5.1", driver="520.61.05"))


def test_without_a_driver_the_targets_cuda_decides() -> None:
    problem = only_problem(found("torch==2.15.0", at="12.8"))
    assert "CUDA 13.2" in problem
    assert "an index of cu128 builds" in problem
    assert "torch==2.10.0" in problem
    assert "state target.driver" in problem
    told = found("torch==2.15.0", at="12.8", driver="580.65.06")
    assert not told.problems
    assert "target.cuda says 12.8" in told.warnings[0]


def test_older_cuda_of_the_same_major_or_an_older_major_works() -> None:
    assert found("torch==2.7.1", at="12.8") == NOTHING
    assert found("torch==2.5.1+cu118", at="12.8") == NOTHING
    newer = found("torch==2.8.0+cu129", at="12.8")
    assert not newer.problems
    assert "minor-version compatibility" in newer.warnings[0]


def test_a_gpu_without_code_in_torch_is_refused() -> None:
    problem = only_problem(found("torch==2.5.1+cu121", at="12.8", gpus=("sm_90", "sm_120")))
    assert "has no code for sm_120, only for sm_50" in problem
    assert "an index of cu128 builds (wheels.indexes) or write torch==2.10.0" in problem
    assert found("torch==2.8.0+cu128", at="12.8", gpus=("sm_90", "sm_120")) == NOTHING


@pytest.mark.parametrize(
    ("gpu", "torch", "fits"),
    [
        ("sm_89", "2.8.0+cu128", True),  # runs what is built for sm_86
        ("sm_90a", "2.8.0+cu128", True),
        ("sm_103", "2.8.0+cu128", True),
        ("sm_121", "2.15.0", True),
        ("sm_110", "2.15.0", False),  # 10.0 is another major than 11.0
        ("sm_61", "2.5.1", True),
        ("sm_61", "2.8.0", False),
        ("sm_70", "2.7.1+cu128", False),
        ("sm_70", "2.10.0", True),
        ("sm_70", "2.11.0+cu128", False),
    ],
)
def test_code_runs_on_the_same_major_and_the_same_or_a_higher_minor(
    gpu: str, torch: str, fits: bool
) -> None:
    assert bool(found(f"torch=={torch}", gpus=(gpu,)).problems) is not fits


def test_each_platform_has_its_own_architectures() -> None:
    arm = "linux-aarch64"
    assert found("torch==2.15.0", gpus=("sm_110",), platform=arm) == NOTHING
    problem = only_problem(found("torch==2.15.0", gpus=("sm_75",), platform=arm))
    assert "no torch of this table" in problem
    problem = only_problem(found("torch==2.5.1", gpus=("sm_120",), driver="580"))
    assert "an index of cu132 builds (wheels.indexes) or write torch==2.15.0" in problem
    too_old = found("torch==2.5.1", driver="418.39")
    assert "418.39: with a newer driver, take torch" in only_problem(too_old)
    unknown = found("torch==2.8.0+cu129", gpus=("sm_90",), platform=arm)
    assert not unknown.problems
    assert "not known to this table" in unknown.warnings[0]


def test_a_driver_that_does_not_know_the_gpu_is_refused() -> None:
    problem = only_problem(found("torch==2.8.0", driver="550.54", gpus=("sm_120",)))
    assert "sm_120 is known to drivers from 570 on" in problem
    assert found("numpy==2.0", driver="550.54", gpus=("sm_120",)) == NOTHING


def test_a_torch_without_cuda_is_refused_where_the_default_index_has_no_other() -> None:
    problem = only_problem(found("torch==2.10.0", at="13.0", platform="linux-aarch64"))
    assert "built without CUDA on the default index for linux-aarch64" in problem
    assert "torch==2.14.1" in problem
    problem = only_problem(found("torch==2.15.0", at="12.8", platform="win-amd64"))
    assert problem.endswith("take torch from an index of cu128 builds (wheels.indexes)")
    assert found("torch==2.15.0", platform="win-amd64") == NOTHING
    chosen = found("torch==2.15.0+cpu", at="12.8")
    assert not chosen.problems
    assert "built without CUDA" in chosen.warnings[0]


@pytest.mark.parametrize("gpu", ["sm_100", "sm_120"])
def test_the_nccl_without_code_for_blackwell_is_refused(gpu: str) -> None:
    wheels = ("torch==2.7.1+cu128", "nvidia-nccl-cu12==2.26.2")
    problem = only_problem(found(*wheels, gpus=(gpu,)))
    assert f"nvidia-nccl-cu12 2.26.2 has no code for {gpu}" in problem
    assert "2.8 or newer" in problem
    assert found(*wheels, gpus=("sm_90",)) == NOTHING
    assert found(wheels[0], "nvidia-nccl-cu12==2.26.2.post1", gpus=(gpu,)) == NOTHING


def test_two_nccls_are_refused_shipped_or_provided() -> None:
    both = only_problem(found("nvidia-nccl-cu12==2.27.5", "nvidia-nccl-cu13==2.27.7"))
    assert "nvidia-nccl-cu12 2.27.5 and nvidia-nccl-cu13 2.27.7 both bring libnccl.so.2" in both
    listed = found("nvidia-nccl-cu12==2.27.5", provided=("nvidia-nccl-cu13==2.27.7",))
    assert "and the provided nvidia-nccl-cu13 2.27.7" in only_problem(listed)
    implied = found("nvidia-nccl-cu12==2.27.5", provided=("torch==2.11.0+cu130",))
    assert "and the provided torch 2.11.0+cu130" in only_problem(implied)
    assert found("nvidia-nccl-cu12==2.27.5", provided=("torch==2.8.0",)) == NOTHING
    assert found("nvidia-cublas-cu11==11.1", "nvidia-cublas-cu12==12.1") == NOTHING


def test_an_extension_for_another_torch_is_refused() -> None:
    wheel = "flash-attn==2.8.3+cu12torch2.7cxx11abiTRUE"
    assert "write torch==2.7.*" in only_problem(found("torch==2.8.0", wheel))
    assert found("torch==2.7.1", wheel) == NOTHING
    assert "compiled for torch 2.7" in only_problem(found(wheel, provided=("torch==2.9.1",)))
    mixed = found("torch==2.11.0+cu130", "torchvision==0.26.0+cu128")
    assert "take both from one index" in only_problem(mixed)


def test_the_label_may_stand_in_the_file_name_alone() -> None:
    target = Target(python="3.11", platform="linux-x86_64", driver="570.86")
    wheel = ("mmcv", "2.2.0", "mmcv-2.2.0+cu130-cp311-cp311-linux_x86_64.whl")
    assert "mmcv 2.2.0 is built for CUDA 13.0" in cuda.check(target, [wheel]).problems[0]
    named = ("cupy-cuda13x", "14.0", "cupy_cuda13x-14.0-cp311-cp311-manylinux2014_x86_64.whl")
    assert "cupy-cuda13x 14.0 is built for CUDA 13," in cuda.check(target, [named]).problems[0]


def test_what_the_table_does_not_know_is_said_and_refuses_nothing() -> None:
    unknown = found("torch==9.0.0", at="12.8", gpus=("sm_90",))
    assert unknown.problems == ()
    assert unknown.warnings == (
        f"which CUDA torch 9.0.0 is built for is not known to this table (of {cuda_tables.DATE})",
    )
    # Its own runtime tells what the table does not.
    brought = found("torch==9.0.0", "nvidia-cuda-runtime==13.2.86", driver="570.86")
    assert "torch 9.0.0 is built for CUDA 13.2" in only_problem(brought)
    future = found("torch==9.0.0+cu200", driver="600.1")
    assert future.problems == ()
    assert "which driver that needs is not known" in future.warnings[0]


def test_a_mac_has_no_cuda_to_check() -> None:
    assert found("torch==2.15.0", platform="macos-arm64", at="12.8") == NOTHING


def test_labels_and_the_torch_of_each_cuda() -> None:
    assert [cuda.label(c) for c in ("12.8", "12.8.1", "13.0", "11.8")] == [
        *("cu128", "cu128", "cu130", "cu118")
    ]
    assert cuda.torch_for("12.8", "linux-x86_64") == ("2.10.0", "2.9.1", "2.9.0", "2.8.0")
    assert cuda.torch_for("13.0", "linux-aarch64")[0] == "2.14.1"
    assert cuda.torch_for("12.8", "linux-aarch64") == ()
    assert cuda.torch_for("12.8", "macos-arm64") == ()


def test_the_tables_agree_with_each_other() -> None:
    for platform, table in cuda_tables.TORCH.items():
        for name, versions in table.items():
            assert list(versions) == sorted(versions, key=version)
            assert version(name)[0] in cuda_tables.DRIVERS["linux"]
            assert name in cuda_tables.ARCHITECTURES[platform]
