"""torch, its CUDA and its NCCL, held against the machine's driver and GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mirror.core.target import Target
from mirror.verify import stack as stacks

OWN = (("/env/lib/nvidia/nccl/lib/libnccl.so.2", True),)
HOPPER = stacks.Stack(
    torch="2.11.0+cu130",
    accelerate="1.15.0",
    cuda="13.0",
    gpus=("NVIDIA H200", "NVIDIA H200"),
    reason="",
    capabilities=("9.0", "9.0"),
    architectures=("sm_75", "sm_80", "sm_90", "sm_100", "sm_120"),
    nccl="2.28.9",
    libraries=OWN,
)
PACKAGES = {"torch": "2.11.0", "nvidia-nccl-cu13": "2.28.9", "numpy": "2.0"}
MACHINE = Target("3.12", "linux-x86_64", driver="580.159.04", gpus=("sm_90",))


def stack(cuda: str, gpus: int) -> stacks.Stack:
    return stacks.Stack("2.11.0", "1.15.0", cuda, ("NVIDIA H200",) * gpus, "driver too old")


def test_a_torch_that_cannot_use_the_gpus_that_are_there_is_no_pass() -> None:
    assert stacks.gpus(stack("13.0", 2), None, 2).verdict == "pass"
    assert stacks.gpus(stack("13.0", 0), None, 2).verdict == "fail"
    assert stacks.gpus(stack("", 0), None, 2).verdict == "warn"  # a build for the CPU
    assert stacks.gpus(stack("", 0), 1, 2).verdict == "fail"
    assert "driver" in stacks.gpus(stack("13.0", 1), 2, 2).advice
    assert "host" in stacks.gpus(stack("13.0", 1), 2, 1).advice, "torch is not to blame"
    assert stacks.gpus(stack("13.0", 0), None, 0).verdict == "skip"
    assert "driver too old" in stacks.gpus(stack("13.0", 0), None, 2).evidence


def test_what_the_driver_runs_passes() -> None:
    check = stacks.fits(HOPPER, PACKAGES, MACHINE)
    assert (check.verdict, check.evidence) == (
        "pass",
        "driver 580.159.04 runs what is built for CUDA 13.0",
    )


def test_a_driver_that_is_too_old_for_torchs_cuda_fails_with_a_way_out() -> None:
    check = stacks.fits(HOPPER, PACKAGES, replace(MACHINE, driver="550.54.15"))
    assert check.verdict == "fail"
    assert "needs driver 580 or newer" in check.evidence
    assert "mirror probe" in check.advice


def test_a_known_bad_nccl_on_a_blackwell_fails() -> None:
    packages = {"torch": "2.7.1", "nvidia-nccl-cu12": "2.26.2"}
    old = replace(HOPPER, torch="2.7.1+cu128", cuda="12.8")
    check = stacks.fits(old, packages, replace(MACHINE, gpus=("sm_120",)))
    assert check.verdict == "fail"
    assert "no code for sm_120, and no setting cures that" in check.evidence


@pytest.mark.parametrize(
    ("capability", "architectures", "verdict"),
    [
        ("9.0", ("sm_80", "sm_90"), "pass"),
        ("8.9", ("sm_80", "sm_90"), "pass"),  # sm_80's code runs on a higher minor
        ("12.0", ("sm_80", "sm_90"), "fail"),
        ("12.0", ("sm_90", "compute_90"), "warn"),  # the driver compiles it
        ("7.5", ("sm_80", "compute_80"), "fail"),
    ],
)
def test_torchs_own_list_of_architectures_is_held_against_each_gpu(
    capability: str, architectures: tuple[str, ...], verdict: str
) -> None:
    found = replace(HOPPER, capabilities=("9.0", capability), architectures=architectures)
    found = replace(found, gpus=("NVIDIA H200", "another"))
    check = stacks.architectures(found)
    assert check.verdict == verdict
    if verdict != "pass":
        assert f"another (sm_{capability.replace('.', '')})" in check.evidence


def test_one_nccl_of_the_environments_own_passes() -> None:
    check = stacks.nccl(HOPPER, PACKAGES, 8 * 2**20)
    assert (check.verdict, check.evidence) == ("pass", f"NCCL 2.28.9: {OWN[0][0]}")
    built_in = stacks.nccl(replace(HOPPER, libraries=()), {"torch": "2.11.0"}, 8 * 2**20)
    assert built_in.verdict == "pass"


def test_two_nccls_fail_installed_or_loaded() -> None:
    both = {**PACKAGES, "nvidia-nccl-cu12": "2.27.5"}
    check = stacks.nccl(HOPPER, both, 8 * 2**20)
    assert (check.verdict, "both bring libnccl.so.2" in check.evidence) == ("fail", True)
    loaded = replace(HOPPER, libraries=(*OWN, ("/usr/lib/libnccl.so.2.20.5", False)))
    assert stacks.nccl(loaded, PACKAGES, 8 * 2**20).verdict == "fail"


def test_an_nccl_that_stands_in_for_the_environments_is_told() -> None:
    system = replace(HOPPER, libraries=(("/usr/lib/libnccl.so.2.20.5", False),))
    check = stacks.nccl(system, PACKAGES, 8 * 2**20)
    assert (check.verdict, "LD_LIBRARY_PATH" in check.advice) == ("warn", True)
    other = stacks.nccl(replace(HOPPER, nccl="2.27.5"), PACKAGES, 8 * 2**20)
    assert (other.verdict, "2.28.9" in other.evidence) == ("warn", True)


def test_an_unlimited_stack_is_told_where_it_crashes_nccl() -> None:
    old = replace(HOPPER, nccl="2.27.5")
    packages = {**PACKAGES, "nvidia-nccl-cu13": "2.27.5"}
    assert stacks.nccl(old, packages, None).verdict == "warn"
    assert stacks.nccl(old, packages, 8 * 2**20).verdict == "pass"
    assert stacks.nccl(HOPPER, PACKAGES, None).verdict == "pass"
