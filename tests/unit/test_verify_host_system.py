"""The system, the network and the settings that training on GPUs stumbles over."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.verify.host import network, settings, system
from mirror.verify.host.machine import Room, container
from mirror.verify.report import Check
from tests.captured import Captured
from tests.unit.test_verify_host_machines import look

V1 = "9:name=systemd:/\n4:memory:/slurm/job_7\n2:cpu,cpuacct:/slurm/job_7\n0::/\n"


# -- kernel, cores, memory -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "verdict"),
    [
        ("4.18.0-553.el8_10.x86_64", "warn"),
        ("5.4.0-216-generic", "warn"),
        ("5.5.0", "pass"),
        ("5.15.0-161-generic", "pass"),
        ("6.1.0-39-amd64", "pass"),
        ("unknown", "pass"),
    ],
)
def test_a_kernel_on_which_accelerate_may_hang(kernel: str, verdict: str) -> None:
    here = Captured("cpu-only")
    here.files["/proc/sys/kernel/osrelease"] = f"{kernel}\n"
    assert system.check_system(here).verdict == verdict


@pytest.mark.parametrize(
    ("mark", "name"),
    [
        ("/.dockerenv", "Docker"),
        ("/run/.containerenv", "Podman"),
        ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
        ("APPTAINER_CONTAINER", "Apptainer"),
        ("container", "a container"),
    ],
)
def test_a_container_is_known_as_one(mark: str, name: str) -> None:
    here = Captured("cpu-only")
    assert container(here) == ""
    if mark.startswith("/"):
        here.paths.add(mark)
    else:
        here.variables[mark] = "x"
    assert container(here) == name
    assert system.check_system(here).evidence.endswith(f"in {name}")


def test_a_container_of_cgroups_first_version_is_known_as_one() -> None:
    here = Captured("cpu-only")
    here.files["/proc/1/cgroup"] = "4:memory:/docker/3f1c9a7be2d0\n"
    assert container(here) == "a container"


def test_a_cgroup_with_less_than_the_machine_is_told(tmp_path: Path) -> None:
    check = look(Captured("docker-h100-2"), tmp_path)["cpu and memory"]
    assert check.verdict == "warn"
    assert "6.44 GB for 2 ranks" in check.evidence
    assert "1.5 cores for 2 ranks" in check.evidence
    assert "2.16 TB, of which this cgroup may use 6.44 GB" in check.evidence
    here = Captured("docker-h100-2").edit_file("/sys/fs/cgroup/memory.max", "6442450944", "max")
    here.edit_file("/sys/fs/cgroup/cpu.max", "150000", "max")
    check = look(here, tmp_path)["cpu and memory"]
    assert (check.verdict, check.evidence) == ("pass", "224 cores, 2.16 TB")


def test_the_smallest_limit_on_the_way_up_counts() -> None:
    here = Captured("cpu-only")
    slice_ = "/sys/fs/cgroup/user.slice"
    here.files[f"{slice_}/user-1000.slice/session-4.scope/memory.max"] = "max\n"
    here.files[f"{slice_}/user-1000.slice/memory.max"] = "5000000000\n"
    here.files[f"{slice_}/memory.max"] = "20000000000\n"
    check = system.check_memory(here, 2)
    assert (check.verdict, "5.00 GB for 2 ranks" in check.evidence) == ("warn", True)
    assert system.check_memory(here, 1).verdict == "pass"


def test_cgroups_of_the_first_version_are_read_too() -> None:
    here = Captured("cpu-only")
    here.files["/proc/self/cgroup"] = V1
    here.files["/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes"] = "3000000000\n"
    here.files["/sys/fs/cgroup/memory/memory.limit_in_bytes"] = "9223372036854771712\n"
    here.files["/sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us"] = "50000\n"
    here.files["/sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_period_us"] = "100000\n"
    check = system.check_memory(here, 1)
    assert check.evidence.startswith("3.00 GB for 1 rank: each takes about 4 GB\n0.5 cores for")
    here.files["/sys/fs/cgroup/cpu/slurm/job_7/cpu.cfs_quota_us"] = "-1\n"
    here.files["/sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes"] = "9223372036854771712\n"
    assert system.check_memory(here, 1).verdict == "pass"


def test_cores_are_those_this_process_may_use() -> None:
    here = Captured("cpu-only").edit_file("/proc/self/status", "0-1", "0,2-4,9")
    assert system.check_memory(here, 2).evidence.startswith("5 cores")
    here.edit_file("/proc/self/status", "0,2-4,9", "3")
    assert system.check_memory(here, 2).verdict == "warn"


def test_what_cannot_be_read_is_skipped_with_the_reason_not_passed() -> None:
    here = Captured("cpu-only").says("df", "-PB1", out="")
    here.files.clear()
    for check, reason in (
        (system.check_memory(here, 1), "no /proc"),
        (system.check_shared_memory(here), "no /dev/shm"),
        (system.check_limits(here), "/proc/self/limits"),
        (system.check_disk(here, "/opt", programs=True), "/opt"),
        (network.check_hostname(here), "its name"),
    ):
        assert check.verdict == "skip"
        assert reason in check.evidence


# -- shared memory, limits, disk -----------------------------------------------------------------


def small(here: Captured, total: int, free: int, monkeypatch: pytest.MonkeyPatch) -> Check:
    monkeypatch.setattr(here, "room", lambda folder: Room(total, free))
    return system.check_shared_memory(here)


@pytest.mark.parametrize(
    ("name", "mark", "advice"),
    [
        ("docker-h100-2", None, "--ipc=host"),
        ("docker-h100-2", "KUBERNETES_SERVICE_HOST", "emptyDir"),
        ("rtx5090-4", None, "mount -o remount"),
    ],
)
def test_little_shared_memory_is_cured_where_it_comes_from(
    name: str, mark: str | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Captured(name)
    if mark:
        here.variables[mark] = "x"
    check = small(here, 2**26, 2**26, monkeypatch)
    assert check.verdict == "warn"
    assert check.evidence.startswith("/dev/shm: 67.1 MB, 67.1 MB free")
    assert advice in check.advice
    assert small(here, 2**33, 2**33, monkeypatch).verdict == "pass"


def test_shared_memory_that_others_filled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    check = small(Captured("rtx5090-4"), 2**33, 2**20, monkeypatch)
    assert check.verdict == "warn"
    assert "what others left" in check.advice


@pytest.mark.parametrize(
    ("old", "new", "cards", "words"),
    [
        ("stack size            8388608", "stack size            unlimited", False, "NCCL older"),
        ("open files            1024", "open files            256 ", False, "only 256 open files"),
        ("locked memory         8388608", "locked memory         65536", True, "only 65.5 kB of"),
        ("locked memory         8388608", "locked memory         65536", False, ""),
    ],
)
def test_limits_that_hurt_are_found(old: str, new: str, cards: bool, words: str) -> None:
    here = Captured("rtx5090-4")
    assert system.check_limits(here).verdict == "pass"
    here.edit_file("/proc/self/limits", f"Max {old}", f"Max {new}")
    here.paths |= {"/sys/class/infiniband/mlx5_0"} if cards else set()
    check = system.check_limits(here)
    assert check.verdict == ("warn" if words else "pass")
    assert words in check.evidence
    assert ("ulimit" in check.advice) == bool(words)


MOUNTS = """\
/dev/vda / ext4 rw,relatime 0 0
data /srv/my\\040data xfs rw,nosuid,noexec 0 0
data /srv xfs rw 0 0
tmpfs /srv tmpfs rw,noexec 0 0
"""


def test_the_mount_of_a_folder_is_found() -> None:
    assert system.mount(MOUNTS, "/opt/mirror") == ("/", ("rw", "relatime"))
    assert system.mount(MOUNTS, "/srv/my data/root")[0] == "/srv/my data"
    assert system.mount(MOUNTS, "/srv/x") == ("/srv", ("rw", "noexec")), "the later one is on top"
    assert system.mount(MOUNTS, "/srvx")[0] == "/"
    assert system.mount("", "/opt") == ("", ())


def test_programs_on_a_disk_that_runs_none_fail() -> None:
    here = Captured("rtx5090-4").edit_file(
        "/proc/self/mounts", "/srv xfs rw,", "/srv xfs rw,noexec,"
    )
    check = system.check_disk(here, "/srv/mirror", programs=True)
    assert check.verdict == "fail"
    assert check.evidence.startswith("/srv is mounted noexec")
    assert system.check_disk(here, "/srv/mirror", programs=False).verdict == "pass", "only models"
    assert system.check_disk(here, "/opt/mirror", programs=True).verdict == "pass"


def test_a_full_disk_is_found() -> None:
    here = Captured("rtx5090-4")
    here.edit(("df", "-PB1"), "13312950534144", "999999999")
    assert system.check_disk(here, "/srv/mirror", programs=True).verdict == "warn"
    assert system.check_disk(here, "/opt/mirror", programs=True).verdict == "pass"


# -- network -------------------------------------------------------------------------------------


def test_a_loopback_that_is_down_fails() -> None:
    here = Captured("rtx5090-4")
    assert network.check_loopback(here).verdict == "pass"
    here.loopback = False
    check = network.check_loopback(here)
    assert (check.verdict, "ip link set lo up" in check.advice) == ("fail", True)


@pytest.mark.parametrize(
    ("out", "code", "verdict", "words"),
    [
        ("192.168.7.20    STREAM ws-5090\n", 0, "pass", "ws-5090 is 192.168.7.20"),
        ("127.0.1.1       STREAM ws-5090\n", 0, "pass", "ranks on other hosts cannot use that"),
        ("::1             STREAM ws-5090\n", 0, "pass", "cannot use that"),
        ("10.0.0.99       STREAM ws-5090\n", 0, "warn", "no address of this host"),
        ("10.0.0.99  STREAM x\n192.168.7.20  STREAM x\n", 0, "pass", "10.0.0.99, 192.168.7.20"),
        ("", 2, "warn", "does not resolve"),
        ("", None, "warn", "not resolved within 2 s"),
        ("nonsense\n", 0, "warn", "does not resolve"),
        (None, 0, "skip", "there is no getent"),
    ],
)
def test_the_hosts_own_name(out: str | None, code: int | None, verdict: str, words: str) -> None:
    here = Captured("rtx5090-4").says("getent", "ahosts", "ws-5090", out=out, code=code)
    check = network.check_hostname(here)
    assert check.verdict == verdict
    assert words in check.evidence
    assert ("/etc/hosts: 127.0.0.1 ws-5090" in check.advice) == (verdict == "warn")


def test_ipv6_addresses_of_this_host_are_known() -> None:
    here = Captured("rtx5090-4")
    here.files["/proc/net/if_inet6"] = "20010db8000000000000000000000007 02 40 00 80     eno1\n"
    here.says("getent", "ahosts", "ws-5090", out="2001:db8::7     STREAM ws-5090\n")
    assert network.check_hostname(here).verdict == "pass"
    here.says("getent", "ahosts", "ws-5090", out="2001:db8::8     STREAM ws-5090\n")
    assert network.check_hostname(here).verdict == "warn"


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NCCL_P2P_DISABLE", "1", "27 GB/s, not 294"),
        ("NCCL_P2P_DISABLE", "0", ""),
        ("NCCL_P2P_LEVEL", "LOC", "host memory only"),
        ("NCCL_P2P_LEVEL", "NVL", ""),
        ("NCCL_SHM_DISABLE", "1", "sockets"),
        ("NCCL_COMM_ID", "10.0.0.1:4321", "hang"),
        ("CUDA_LAUNCH_BLOCKING", "1", "deadlock"),
        ("NCCL_ALGO", "Ring", "pins"),
        ("NCCL_MAX_NCHANNELS", "2", "pins"),
        ("NCCL_SOCKET_IFNAME", "ib9", "there is no such interface, only eno1, lo"),
        ("NCCL_SOCKET_IFNAME", "en", ""),
        ("GLOO_SOCKET_IFNAME", "=en", "there is no such interface"),
        ("NCCL_NVLS_ENABLE", "0", ""),
        ("NCCL_DEBUG", "INFO", ""),
    ],
)
def test_what_is_set_is_told_and_what_costs_is_a_warning(name: str, value: str, words: str) -> None:
    here = Captured("rtx5090-4")
    assert settings.check_nccl(here).evidence == "none"
    here.variables[name] = value
    check = settings.check_nccl(here)
    assert check.verdict == ("warn" if words else "pass")
    assert words in check.evidence
    assert check.evidence.endswith(f"{name}={value} (environment)")


def test_files_of_settings_are_read_as_nccl_reads_them() -> None:
    here = Captured("rtx5090-4")
    here.files["/etc/nccl.conf"] = "# the machine's\nNCCL_SHM_DISABLE=1\n\nNCCL_ALGO=Tree\n"
    here.files["/home/user/.nccl.conf"] = " NCCL_PROTO = LL\nNCCL_DEBUG=WARN\n"
    here.variables["NCCL_DEBUG"] = "INFO"
    check = settings.check_nccl(here)
    assert check.verdict == "warn"
    assert check.evidence.splitlines() == [
        "NCCL_PROTO=LL pins what NCCL chooses for each machine",
        "NCCL_SHM_DISABLE=1: GPUs that are no peers talk through sockets",
        "NCCL_DEBUG=INFO (environment)",
        "NCCL_PROTO=LL (/home/user/.nccl.conf)",
        "NCCL_SHM_DISABLE=1 (/etc/nccl.conf)",
        "NCCL_ALGO=Tree (/etc/nccl.conf)",  # the machine's owner chose it for the machine
    ]
    assert "Remove it from /etc/nccl.conf" in check.advice
    here.variables["NCCL_CONF_FILE"] = "/none"
    assert "NCCL_PROTO" not in settings.check_nccl(here).evidence


@pytest.mark.parametrize(
    ("value", "taken"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth1", ["eth1"]),
        ("eth1,ib", ["eth1", "ib0"]),
        ("^docker,lo", ["eth0", "eth1", "ib0"]),
        ("^=eth0", ["docker0", "eth1", "ib0", "lo"]),
        ("wlan", []),
        ("", ["docker0", "eth0", "eth1", "ib0", "lo"]),
    ],
)
def test_names_of_interfaces_are_read_as_nccl_reads_them(value: str, taken: list[str]) -> None:
    there = ["docker0", "eth0", "eth1", "ib0", "lo"]
    assert settings.interfaces(value, there) == taken


def test_preloaded_and_shadowing_libraries_are_found() -> None:
    here = Captured("rtx5090-4")
    assert settings.check_libraries(here).verdict == "pass"
    here.variables["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64:/opt/nothing:"
    here.paths |= {"/usr/local/cuda/lib64/libcudart.so.12", "/usr/local/cuda/lib64/libnccl.so.2"}
    check = settings.check_libraries(here)
    assert check.verdict == "warn"
    assert "libcudart.so.12, libnccl.so.2, found before torch's own" in check.evidence
    here.variables["LD_LIBRARY_PATH"] = "/usr/local/cuda/lib64/stubs"
    here.paths.add("/usr/local/cuda/lib64/stubs/libcuda.so")
    check = settings.check_libraries(here)
    assert (check.verdict, "error 34" in check.advice) == ("warn", True)
    here.variables = {"LD_PRELOAD": "/opt/\x1b[2Jtrace.so"}
    check = settings.check_libraries(here)
    assert check.verdict == "warn"
    assert "\\x1b[2Jtrace.so is loaded into every process" in check.evidence
