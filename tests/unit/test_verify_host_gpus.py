"""GPUs and their driver: how many, in what state, in whose use; each check can fail and pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.hardware import Answer
from mirror.verify import host
from mirror.verify.host import cards, drivers, gpus
from mirror.verify.host.cards import DETAILS
from mirror.verify.host.drivers import DEVICES
from mirror.verify.host.gpus import LIST
from tests.captured import Captured
from tests.unit.test_verify_host_machines import look

MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\n"
SILENT = "couldn't communicate with the NVIDIA driver. Make sure that it is running."
NO_LIBRARY = "couldn't find libnvidia-ml.so library in your system."
GONE = "the device handle for GPU0000:CB:00.0: GPU is lost. Reboot the system to recover it"


def xml(name: str) -> str:
    return Captured(name).said(*DETAILS)


# -- which there are -----------------------------------------------------------------------------


def test_fewer_than_asked_for_fail_and_say_what_hides_the_others(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8")
    here.variables["CUDA_VISIBLE_DEVICES"] = "4,5"
    check = look(here, tmp_path, gpus=4)["gpus"]
    assert check.verdict == "fail"
    assert check.evidence.startswith("4 asked for; driver 580.159.04, 2 GPUs\n4: NVIDIA H200")
    assert check.evidence.endswith("CUDA_VISIBLE_DEVICES=4,5 hides 6 GPUs")
    assert look(here, tmp_path, gpus=2)["gpus"].verdict == "pass"


def test_a_variable_that_hides_all_is_named(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8")
    here.variables["CUDA_VISIBLE_DEVICES"] = ""
    check = look(here, tmp_path)["gpus"]
    assert check.verdict == "warn"
    assert check.evidence.endswith("CUDA_VISIBLE_DEVICES= hides 8 GPUs")
    check = look(here, tmp_path, gpus=1)["gpus"]
    assert check.verdict == "fail"
    assert check.advice.startswith("Unset CUDA_VISIBLE_DEVICES")


def test_a_variable_that_names_a_gpu_that_is_not_there_is_found(tmp_path: Path) -> None:
    here = Captured("rtx5090-4")
    here.variables["CUDA_VISIBLE_DEVICES"] = "0,7,1"
    check = look(here, tmp_path)["gpus"]
    assert check.verdict == "warn"
    assert "names '7', and there is no such GPU" in check.evidence
    here.variables["CUDA_VISIBLE_DEVICES"] = "1,-1,0"  # how CUDA's own guide ends a list
    assert look(here, tmp_path)["gpus"].verdict == "pass"


def test_numbers_mean_other_gpus_to_cuda_where_models_differ(tmp_path: Path) -> None:
    here = Captured("rtx4090-2").edit(LIST, "0, NVIDIA GeForce RTX 4090", "0, NVIDIA RTX A6000")
    assert look(here, tmp_path)["gpus"].verdict == "pass", "no number, no mistake"
    here.variables["CUDA_VISIBLE_DEVICES"] = "1"
    assert look(here, tmp_path)["gpus"].verdict == "warn"
    here.variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    assert look(here, tmp_path)["gpus"].verdict == "pass"


def test_a_mig_instance_stands_for_its_gpu() -> None:
    here = Captured("a100-mig-2")
    listed = gpus.instances(here.said("nvidia-smi", "-L"))
    second = next(gpu for gpu in host.parse(here.said(*LIST)) if gpu.index == "1")
    of_second = [uuid for uuid, gpu in listed.items() if gpu == second.uuid]
    assert (len(listed), len(of_second)) == (6, 2)
    here.variables["CUDA_VISIBLE_DEVICES"] = of_second[1]
    assert host.visible_gpus(here) == [second]
    here.variables["CUDA_VISIBLE_DEVICES"] = "MIG-0000"
    assert host.visible_gpus(here) == []


def test_a_lost_gpu_among_others_is_told(tmp_path: Path) -> None:
    here = Captured("rtx5090-4")
    lost = "Unable to determine the device handle for GPU2: 0000:81:00.0: Unknown Error\n"
    kept = "".join(line for line in here.said(*LIST).splitlines(True) if not line.startswith("2,"))
    here.answers[LIST] = Answer(15, kept, lost)
    checks = look(here, tmp_path)
    assert checks["gpus"].verdict == "warn"
    assert "GPU2: 0000:81:00.0" in checks["gpus"].evidence
    assert checks["driver"].verdict == "warn"
    assert "4 NVIDIA GPUs on the PCI bus, the driver shows 3" in checks["driver"].evidence
    assert [gpu.index for gpu in host.visible_gpus(here) or ()] == ["0", "1", "3"]


def test_a_warning_beside_a_whole_list_hides_no_gpu() -> None:
    here = Captured("rtx4090-2")
    text = here.said(*LIST) + "WARNING: infoROM is corrupted at gpu 0000:06:00.0\n"
    assert len(host.visible_gpus(here.says(*LIST, out=text, code=14)) or ()) == 2


# -- the driver ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (
            "NVIDIA UNIX x86_64 Kernel Module  550.163.01  Tue Oct  6 11:18:23 UTC 2026",
            "550.163.01",
        ),
        ("NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build", "580.159.04"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build", "580.95.05"),
        ("NVIDIA UNIX Open Kernel Module for aarch64  TempVersion  Release Build", ""),
        ("", ""),
    ],
)
def test_the_kernel_module_is_read(module: str, found: str) -> None:
    here = Captured("driver-mismatch")
    here.files["/proc/driver/nvidia/version"] = f"NVRM version: {module}\nGCC version:  13\n"
    assert drivers.kernel_module(here) == found


@pytest.mark.parametrize(
    ("said", "code", "meaning", "advice"),
    [
        (MISMATCH + "NVML library version: 570.211\n", 18, "570.195.03 and 570.211", "rmmod"),
        (MISMATCH, 18, "of two versions", "Reboot"),
        (f"NVIDIA-SMI has failed because it {SILENT}", 9, "not loaded", "modprobe"),
        (f"NVIDIA-SMI {NO_LIBRARY}", 12, "libraries are not here", "--gpus all"),
        ("Failed to initialize NVML: Unknown Error", 255, "cannot be opened", "restart it"),
        ("Failed to initialize NVML: Insufficient Permissions", 4, "may not open", "mode of /dev"),
        (f"Unable to determine {GONE}", 15, "does not answer the driver", "Reboot"),
        ("Something nobody has seen", 255, "nvidia-smi fails", "dmesg"),
        ("", None, "hangs in the driver", "reboot"),
    ],
)
def test_what_nvidia_smi_says_instead_of_an_answer_is_understood(
    said: str, code: int | None, meaning: str, advice: str, tmp_path: Path
) -> None:
    here = Captured("driver-mismatch").says(*LIST, out=said, code=code)
    check = look(here, tmp_path)["driver"]
    assert check.verdict == "fail"
    assert meaning in check.evidence
    assert advice in check.advice
    assert "GeForce RTX 4090" in check.evidence, "and which GPU lies idle"
    assert host.visible_gpus(here) is None


def test_an_image_for_gpus_on_a_machine_without_any_is_not_broken(tmp_path: Path) -> None:
    here = Captured("no-driver").says(*DEVICES, out="")
    assert look(here, tmp_path)["driver"].verdict == "warn"
    here = Captured("no-driver").says(*DEVICES, out=None)
    assert look(here, tmp_path)["driver"].verdict == "fail", "nobody knows what hardware is there"


def test_a_driver_without_usable_gpus_is_told(tmp_path: Path) -> None:
    here = Captured("driver-mismatch").says(*LIST, out="No devices were found\n", code=6)
    assert host.visible_gpus(here) == []
    assert look(here, tmp_path)["driver"].verdict == "warn"


def test_gpus_without_nvidia_smi_are_told(tmp_path: Path) -> None:
    here = Captured("no-driver").says(*LIST, out=None)
    check = look(here, tmp_path)["driver"]
    assert check.verdict == "warn"
    assert check.evidence.startswith("no driver is loaded, and there is no nvidia-smi")
    assert "Install" in check.advice
    here.paths.add("/.dockerenv")
    assert "--gpus all" in look(here, tmp_path)["driver"].advice
    here = Captured("driver-mismatch").says(*LIST, out=None)
    assert "570.195.03 is loaded" in look(here, tmp_path)["driver"].evidence


def test_a_module_of_another_version_than_the_driver_says_fails(tmp_path: Path) -> None:
    here = Captured("rtx5090-4")
    assert look(here, tmp_path)["driver"].verdict == "pass"
    here.edit_file("/proc/driver/nvidia/version", "570.195.03", "570.124.06")
    check = look(here, tmp_path)["driver"]
    assert check.verdict == "fail"
    assert "the kernel module is 570.124.06, the driver says 570.195.03" in check.evidence


def test_a_container_may_have_fewer_gpus_than_the_bus(tmp_path: Path) -> None:
    listed = Captured("hgx-h200-8").said(*DEVICES)
    here = Captured("docker-h100-2").says(*DEVICES, out=listed)
    assert look(here, tmp_path)["driver"].verdict == "pass"


def test_device_files_that_are_missing_are_named(tmp_path: Path) -> None:
    here = Captured("rtx4090-2")
    check = look(here, tmp_path)["device files"]
    assert check.verdict == "pass"
    assert "nvidia-modprobe makes them" in check.evidence
    here.paths.remove("/usr/bin/nvidia-modprobe")
    check = look(here, tmp_path)["device files"]
    assert (check.verdict, check.evidence) == ("warn", "not there: /dev/nvidia-uvm")
    here = Captured("docker-h100-2")
    assert look(here, tmp_path)["device files"].verdict == "pass"
    here.paths -= {"/dev/nvidia3", "/dev/nvidia-uvm"}
    here.paths.add("/usr/bin/nvidia-modprobe")  # of no use in a container
    check = look(here, tmp_path)["device files"]
    assert (check.verdict, check.evidence) == ("warn", "not there: /dev/nvidia3, /dev/nvidia-uvm")
    assert "--gpus all" in check.advice
    here.paths.add("/dev/dxg")
    assert "device files" not in look(here, tmp_path)


# -- the state of each ---------------------------------------------------------------------------


def test_the_xml_is_read() -> None:
    found = cards.parse(xml("hgx-h200-8"))
    assert found is not None
    assert len(found) == 8
    second = found[1]
    assert (second.bus, second.minor, second.mig) == ("0000:43:00.0", "1", "Disabled")
    assert (second.generation, second.width, second.full_width) == (5, 16, 16)
    assert (second.fabric_state, second.fabric_status) == ("Completed", "Success")
    assert second.counts_errors
    assert (second.uncorrectable, second.rows, second.slowdowns) == ({}, (), ())
    assert second.recovery == ""
    desktop = cards.parse(xml("rtx4090-2"))
    assert desktop is not None
    assert [p.name for p in desktop[0].processes] == ["/usr/lib/xorg/Xorg", "/usr/bin/gnome-shell"]
    assert [p.computes for p in desktop[1].processes] == [False, True]
    assert not desktop[0].counts_errors
    assert desktop[0].fabric_state == ""


def test_older_drivers_name_things_otherwise() -> None:
    text = xml("a100-pcie-4")
    old = "<volatile><double_bit><total>3</total></double_bit></volatile>"
    begin, end = text.index("<volatile>"), text.index("</volatile>") + len("</volatile>")
    text = text[:begin] + old + text[end:]
    text = text.replace("clocks_event_reason", "clocks_throttle_reason")
    text = text.replace("<pending_retirement>N/A", "<pending_retirement>Yes", 1)
    text = text.replace("<reset_required>No", "<reset_required>Yes", 1)
    found = cards.parse(text)
    assert found is not None
    assert found[0].uncorrectable == {"double bit": 3}
    assert found[0].rows == ("pending",)
    assert found[0].recovery == "Reset"
    assert found[3].slowdowns == ("too hot (hardware)",)


def test_a_process_with_any_name_spoils_nothing() -> None:
    text = xml("rtx4090-2").replace("train.py", "--tag <a & b> \x07")
    found = cards.parse(text)
    assert found is not None
    assert len(found) == 2
    assert found[1].width == 4
    assert found[1].processes == ()
    text = xml("rtx4090-2").replace("train.py", "caf\ufffd \x1b[2J")
    found = cards.parse(text)
    assert found is not None
    assert found[1].processes[1].name.endswith("caf\ufffd ?[2J")


def test_no_entity_is_ever_read_from_the_xml(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    dtd = (
        f'<!DOCTYPE nvidia_smi_log [<!ENTITY a SYSTEM "file://{secret}"><!ENTITY b "{"x" * 99}">]>'
    )
    text = f"{dtd}<nvidia_smi_log><gpu><uuid>&b;</uuid></gpu></nvidia_smi_log>"
    assert cards.parse(text) is None
    assert cards.parse(text.replace("&b;", "&a;")) is None
    whole = cards.parse(text.replace("&b;", "GPU-1"))
    assert whole is not None
    assert whole[0].uuid == "GPU-1"


def test_health_names_each_gpu_and_what_to_do(tmp_path: Path) -> None:
    check = look(Captured("a100-pcie-4"), tmp_path)["gpu health"]
    assert check.verdict == "fail"
    lines = check.evidence.splitlines()
    assert "GPU 1: memory errors that could not be corrected: dram uncorrectable 2" in lines
    assert "GPU 1: spare memory is to replace bad one at a reset" in lines
    assert "GPU 2: memory failed, and no spare rows are left" in lines
    assert "GPU 2: too many uncorrectable errors in SRAM over its life" in lines
    assert "GPU 3: slowed down: too hot (hardware)" in lines
    assert lines[-1] == "GPU 0: no uncorrected memory errors, not slowed down"
    assert "must be replaced" in check.advice


@pytest.mark.parametrize(
    ("old", "new", "verdict", "words"),
    [
        ("<remapped_row_failure>No", "<remapped_row_failure>Yes", "fail", "no spare rows"),
        ("<remapped_row_pending>No", "<remapped_row_pending>Yes", "warn", "at a reset"),
        ("<dram_uncorrectable>0", "<dram_uncorrectable>7", "warn", "dram uncorrectable 7"),
        ("<sram_uncorrectable_parity>0", "<sram_uncorrectable_parity>1", "warn", "parity 1"),
        ("<sram_threshold_exceeded>No", "<sram_threshold_exceeded>Yes", "warn", "SRAM"),
        ("<gpu_recovery_action>None", "<gpu_recovery_action>Reboot", "fail", "asks for: Reboot"),
        ("sw_thermal_slowdown>Not Active", "sw_thermal_slowdown>Active", "warn", "too hot"),
        ("power_brake_slowdown>Not Active", "power_brake_slowdown>Active", "warn", "power brake"),
        ("sw_power_cap>Not Active", "sw_power_cap>Active", "pass", ""),
        ("<dram_correctable>0", "<dram_correctable>9", "pass", ""),
    ],
)
def test_each_ailment_of_a_gpu_is_found(
    old: str, new: str, verdict: str, words: str, tmp_path: Path
) -> None:
    check = look(Captured("hgx-h200-8").edit(DETAILS, old, new, 1), tmp_path)["gpu health"]
    assert check.verdict == verdict
    assert words in check.evidence
    assert "GPUs 1-7: no uncorrected" in check.evidence or verdict == "pass"


def test_only_gpus_that_are_visible_count(tmp_path: Path) -> None:
    here = Captured("a100-pcie-4")
    here.variables["CUDA_VISIBLE_DEVICES"] = "0"
    assert look(here, tmp_path)["gpu health"].verdict == "pass"


def test_mig_excludes_several_gpus_but_not_one(tmp_path: Path) -> None:
    here = Captured("a100-mig-2")
    assert look(here, tmp_path)["gpu modes"].verdict == "fail"
    here.variables["CUDA_VISIBLE_DEVICES"] = "0"
    check = look(here, tmp_path, gpus=1)["gpu modes"]
    assert check.verdict == "warn"
    assert "nvidia-smi -i N -mig 0" in check.advice


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("<compute_mode>Default", "<compute_mode>Prohibited", "fail"),
        ("<compute_mode>Default", "<compute_mode>Exclusive_Process", "warn"),
        ("<pending_mig>Disabled", "<pending_mig>Enabled", "warn"),
        ("<persistence_mode>Enabled", "<persistence_mode>Disabled", "pass"),
    ],
)
def test_modes_that_stop_a_rank_are_found(old: str, new: str, verdict: str, tmp_path: Path) -> None:
    check = look(Captured("hgx-h200-8").edit(DETAILS, old, new, 1), tmp_path)["gpu modes"]
    assert check.verdict == verdict
    assert "persistence mode" in check.evidence


def test_memory_in_use_is_told_with_who_uses_it(tmp_path: Path) -> None:
    check = look(Captured("rtx4090-2"), tmp_path)["gpu memory"]
    assert check.verdict == "warn"
    assert check.evidence.splitlines()[0] == (
        "GPU 1: 18,211 of 24564 MiB in use by 20817 /home/ada/env/bin/python train.py (18194 MiB)"
    )
    here = Captured("rtx4090-2").edit(DETAILS, "train.py", "\u202etrain.py")
    assert "\\u202etrain.py" in look(here, tmp_path)["gpu memory"].evidence
    check = look(Captured("docker-h100-2"), tmp_path)["gpu memory"]
    assert "61,234 of 81559 MiB in use by processes that cannot be seen" in check.evidence
    here = Captured("docker-h100-2").edit(LIST, ", 61234\n", ", [N/A]\n")
    assert look(here, tmp_path)["gpu memory"].verdict == "pass"


def test_a_gpu_without_room_to_begin_with_fails_where_it_is_to_be_trained_on(
    tmp_path: Path,
) -> None:
    here = Captured("rtx4090-2").edit(LIST, ", 18211\n", ", 23500\n")
    check = look(here, tmp_path)["gpu memory"]
    assert check.verdict == "fail"
    assert "; the 1,064 MiB left are too few to begin with" in check.evidence
    assert look(here, tmp_path, gpus=1)["gpu memory"].verdict == "warn"


def test_a_link_that_lost_lanes_is_found_and_an_idle_generation_is_not(tmp_path: Path) -> None:
    check = look(Captured("rtx4090-2"), tmp_path)["pcie link"]
    assert check.verdict == "warn"
    assert check.evidence.splitlines()[0] == "GPU 1: x4 of x16, up to generation 4"
    here = Captured("rtx5090-4")
    assert "<current_link_gen>1<" in here.said(*DETAILS)
    assert look(here, tmp_path)["pcie link"].evidence == "GPUs 0-3: x16 of x16, up to generation 5"


def test_without_details_one_line_says_why(tmp_path: Path) -> None:
    here = Captured("hgx-h200-8").says(*DETAILS, out="Killed", code=137)
    checks = look(here, tmp_path)
    assert checks["gpu health"].verdict == "skip"
    assert "exit code 137: Killed" in checks["gpu health"].evidence
    assert not {"gpu modes", "pcie link", "device files"} & checks.keys()
    assert checks["gpu memory"].verdict == "pass", "the list tells that"
    assert checks["peer access"].verdict == "pass"
