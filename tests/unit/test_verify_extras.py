"""The stages `ray` and `vllm`: what is asked, judged and told. vLLM is a fault-injecting shim here.

Real Ray is in tests/e2e/test_extras.py; real vLLM generates on no machine that these tests run on.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.core.index import Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.errors import UsageError
from mirror.machine import this_python
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.verify import cluster, extras, generating, host, processes
from mirror.verify.generating import Memory, Shape
from mirror.verify.host import Gpu
from mirror.verify.report import Check
from mirror.verify.subject import Subject
from tests.captured import Captured

TINY = Path(__file__).resolve().parents[2] / "manifests" / "tiny-llama"
GIB = 2**30

#: Has vLLM's names and none of its work: it fails as it is told to by FAULT.
FAKE = """
import json, os, signal, subprocess, sys, time
fault = os.environ["FAULT"]
if fault == "import":
    raise ImportError("libcudart.so.13: cannot open shared object file: No such file or directory")
KEYS = ("VLLM_WORKER_MULTIPROC_METHOD", "VLLM_CACHE_ROOT", "HF_HUB_OFFLINE", "NCCL_P2P_DISABLE")

class Some:
    def __init__(self, **values):
        self.__dict__.update(values)

class SamplingParams(Some):
    pass

class LLM:
    def __init__(self, **options):
        said = {"options": options, "environ": {k: os.environ.get(k) for k in KEYS}}
        open(os.path.join(os.path.dirname(__file__), "said.json"), "w").write(json.dumps(said))
        if fault == "memory":
            raise RuntimeError("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 G")
        if fault == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault in ("hang", "silent"):
            subprocess.Popen(["sleep", "600"], start_new_session=True)  # as an engine's worker
            if fault == "hang":
                print("No available shared memory broadcast block found in 60 seconds.")
            sys.stdout.flush()
            time.sleep(600)
        self.runs = 0

    def generate(self, prompts, wanted):
        self.runs += 1
        if fault == "nothing":
            return [Some(outputs=[Some(token_ids=(), cumulative_logprob=0.0)]) for _ in prompts]
        shift = self.runs if fault == "differs" else 0
        tokens = tuple(range(shift, shift + wanted.max_tokens))
        total = float("nan") if fault == "nan" else -4.0
        return [Some(outputs=[Some(token_ids=tokens, cumulative_logprob=total)]) for _ in prompts]
"""


@pytest.fixture
def subject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Subject:
    """With the small Llama; the verify table is the test's."""
    model = Path(shutil.copytree(TINY, tmp_path / "models" / "tiny"))
    monkeypatch.setattr(Subject, "model", property(lambda _: model))
    monkeypatch.setattr(host, "visible_gpus", list)  # none, wherever the tests run
    work = tmp_path / "work"
    work.mkdir()
    generation = Generation(tmp_path / "000001")
    index = Index("x", "1", "0.1.0", "0" * 64, Target(this_python(), "linux-x86_64"), ())
    return Subject(Root(tmp_path), generation, index, None, work, Quiet())


def python(folder: Path, fault: str, version: str = "0.11.0") -> Path:
    """This Python with the shim on its path."""
    site = folder / "site"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "__init__.py").write_text(FAKE, encoding="utf-8")
    about = site / f"vllm-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Name: vllm\nVersion: {version}\n", encoding="utf-8")
    script = folder / "python"
    variables = f"PYTHONPATH={shlex.quote(str(site))} FAULT={fault}"
    text = f'#!/bin/sh\n{variables} exec {shlex.quote(sys.executable)} "$@"\n'
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return script


def vllm(
    subject: Subject, tmp_path: Path, fault: str, *, gpus: int = 2, version: str = "0.11.0"
) -> dict[str, Check]:
    env = {"NCCL_P2P_DISABLE": "1"} if gpus else {}
    with processes.nothing_left_behind():
        started = python(tmp_path, fault, version)
        found = list(extras.check("vllm", subject, started, gpus=gpus, env=env))
        assert not processes.descendants()
    return {check.name: check for check in found}


def verdicts(checks: Mapping[str, Check]) -> dict[str, str]:
    return {name: check.verdict for name, check in checks.items()}


# -- what is asked for


def test_the_bundle_says_which_are_made(subject: Subject) -> None:
    def asked(value: Any) -> list[str]:
        return replace(subject, index=replace(subject.index, verify={"checks": value})).checks

    assert subject.checks == []
    assert asked(["vllm", "ray", "ray", "ollama", 3]) == ["ray", "vllm"]
    assert asked("ray") == []


def test_another_name_is_refused(subject: Subject) -> None:
    with pytest.raises(UsageError, match="no check 'ollama'; there are ray, vllm"):
        extras.check("ollama", subject, Path(sys.executable), gpus=0, env={})


@pytest.mark.parametrize("name", ["ray", "vllm"])
def test_what_is_asked_for_and_not_in_the_environment_fails(subject: Subject, name: str) -> None:
    with processes.nothing_left_behind():
        checks = list(extras.check(name, subject, Path(sys.executable), gpus=0, env={}))
    found = {check.name: check for check in checks}["installed"]
    assert found.verdict == "fail"
    assert found.evidence == "asked for, and not in this environment"
    assert f"Add {name} to `wheels.requirements`" in found.advice


# -- vLLM: how it is started


def test_vllm_gets_the_plain_path_small_sizes_and_the_settings_that_were_found(
    subject: Subject, tmp_path: Path
) -> None:
    found = vllm(subject, tmp_path, "none")
    assert verdicts(found) == {
        "parallel": "pass",
        "generate": "pass",
        "twice the same": "pass",
        "stop": "pass",
    }
    assert "16 tokens for 2 prompts, twice" in found["generate"].evidence
    assert "under NCCL_P2P_DISABLE=1" in found["generate"].evidence
    said = json.loads((tmp_path / "site" / "vllm" / "said.json").read_bytes())
    options = said["options"]
    assert options["model"] == str(tmp_path / "models" / "tiny")
    assert (options["tensor_parallel_size"], options["enforce_eager"]) == (2, True)
    assert (options["max_model_len"], options["trust_remote_code"]) == (256, False)
    assert 0 < options["gpu_memory_utilization"] <= 0.3
    assert "disable_custom_all_reduce" not in options
    assert said["environ"]["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert said["environ"]["VLLM_CACHE_ROOT"].startswith(str(subject.work))
    assert said["environ"]["HF_HUB_OFFLINE"] == "1"
    assert said["environ"]["NCCL_P2P_DISABLE"] == "1"


def test_a_vllm_for_gpus_is_not_tried_without_one(subject: Subject, tmp_path: Path) -> None:
    found = vllm(subject, tmp_path, "none", gpus=0)
    assert found["generate"].verdict == "skip"
    assert "not built for CPUs" in found["generate"].evidence


def test_a_vllm_for_cpus_is(subject: Subject, tmp_path: Path) -> None:
    assert vllm(subject, tmp_path, "none", gpus=0, version="0.11.0+cpu")["generate"].verdict == (
        "pass"
    )


def test_free_memory_before_and_after_is_told(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [Gpu(str(n), "NVIDIA H200", f"u{n}", "580", "143771", "4096") for n in range(4)]
    monkeypatch.setattr(host, "visible_gpus", lambda: gpus)
    found = vllm(subject, tmp_path, "none")["memory"]
    assert found.verdict == "pass"
    assert found.evidence.count("146 GB / 146 GB") == 2
    full = [replace(gpu, used="143771") for gpu in gpus]
    monkeypatch.setattr(host, "visible_gpus", lambda: full)
    found = {c.name: c for c in extras.check("vllm", subject, tmp_path, gpus=2, env={})}["memory"]
    assert (found.verdict, "nvidia-smi shows who" in found.advice) == ("fail", True)


# -- vLLM: how it fails


@pytest.mark.parametrize(
    ("fault", "name", "evidence", "known"),
    [
        ("import", "import", "libcudart.so.13: cannot open shared object", "CUDA library"),
        ("memory", "load", "CUDA out of memory", "The GPU's memory is full"),
        ("killed", "load", "killed by signal 9 (SIGKILL)", ""),
    ],
)
def test_a_failure_is_told_with_its_phase_and_what_is_known_of_it(
    subject: Subject, tmp_path: Path, fault: str, name: str, evidence: str, known: str
) -> None:
    found = vllm(subject, tmp_path, fault)
    assert found[name].verdict == "fail"
    assert evidence in found[name].evidence
    assert f"last phase: {name}" in found[name].evidence
    assert found["stop"].verdict == "pass"
    assert known.lower() in " ".join(found).lower()


def test_a_hang_ends_and_leads_to_peer_access(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.LIMITS, "vllm", 12.0)
    found = vllm(subject, tmp_path, "hang")
    assert "it had not ended after 12 s" in found["load"].evidence
    assert "it stood in __init__ (" in found["load"].evidence
    assert "NCCL_P2P_DISABLE=1" in found["vLLM's workers wait for each other"].advice


def test_a_hang_without_a_word_does_too(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.LIMITS, "vllm", 12.0)
    assert "NCCL_P2P_DISABLE=1" in vllm(subject, tmp_path, "silent")["load"].advice


@pytest.mark.parametrize(
    ("fault", "name", "evidence"),
    [
        ("nothing", "generate", "a prompt got none"),
        ("nan", "generate", "no numbers (NaN)"),
        ("differs", "twice the same", "one run gave [[1, 2"),
    ],
)
def test_wrong_tokens_fail(
    subject: Subject, tmp_path: Path, fault: str, name: str, evidence: str
) -> None:
    found = vllm(subject, tmp_path, fault)[name]
    assert found.verdict == "fail"
    assert evidence in found.evidence


def test_without_a_model_that_generates_it_says_so(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "models" / "tiny" / "config.json"
    config.write_text('{"architectures": ["BertForMaskedLM"]}', encoding="utf-8")
    found = vllm(subject, tmp_path, "none")["model"]
    assert (found.verdict, "BertForMaskedLM, which generates no text" in found.evidence) == (
        "fail",
        True,
    )
    monkeypatch.setattr(Subject, "model", None)
    (found,) = extras.check("vllm", subject, Path(sys.executable), gpus=2, env={})
    assert "the bundle has no model" in found.evidence


# -- vLLM: sizes

QWEN = Shape(28, 4, 18944, 152064, 512, 15 * GIB)


@pytest.mark.parametrize(
    ("shape", "gpus", "ranks", "why"),
    [
        (QWEN, 4, 4, "tensor parallel 4 for 4 GPUs"),
        (QWEN, 8, 4, "not 8: 28 attention heads"),
        (QWEN, 3, 2, "not 3: 28 attention heads"),
        (Shape(12, 2, 8960, 151936, 512, GIB), 3, 2, "not 3: 2 key-value heads"),
        (Shape(12, 2, 8960, 151936, 512, GIB), 4, 4, "for 4 GPUs"),  # each head in two places
        (Shape(96, 6, 12288, 151552, 512, GIB), 6, 4, "not 6: a vocabulary of 151552"),
        (Shape(9, 3, 1536, 49152, 512, GIB), 3, 3, "for 3 GPUs"),
        (Shape(0, 0, 0, 0, 512, 0), 8, 8, "for 8 GPUs"),
    ],
)
def test_a_model_is_split_as_far_as_it_divides(
    shape: Shape, gpus: int, ranks: int, why: str
) -> None:
    if shape.heads == 96:
        shape = replace(shape, kv_heads=12)
    size = shape.parallel(gpus)
    assert size.ranks == ranks
    assert why in size.why


def test_the_share_of_memory_keeps_to_what_is_free() -> None:
    big = 80 * GIB
    assert generating.share([], GIB) == (0.3, "")
    assert generating.share([Memory(big, big)], 0) == (0.1, "")
    assert generating.share([Memory(big, big), Memory(20 * GIB, big)], 15 * GIB)[0] == 0.22
    part, why = generating.share([Memory(big, big), Memory(6 * GIB, big)], 15 * GIB)
    assert part == 0
    assert why == "16.1 GB of weights go on each GPU; one has 6.44 GB of 85.9 GB free"


def test_memory_that_is_not_given_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generating, "_PATIENCE", 0.0)
    before = [Memory(70 * GIB, 80 * GIB)]
    kept = generating.given_back(before, lambda: [Memory(60 * GIB, 80 * GIB)], 0.2)
    assert kept.verdict == "warn"
    assert "75.2 GB / 64.4 GB" in kept.evidence
    assert generating.given_back(before, lambda: before, 0.2).verdict == "pass"


# -- Ray


def ray_answer(*rows: tuple[int, str, str, str]) -> dict[str, Any]:
    tasks = [
        {"pid": pid, "visible": gpu, "gpus": [gpu], "uuid": uuid, "reason": reason}
        for pid, gpu, uuid, reason in rows
    ]
    has = {"CPU": len(rows), "GPU": len(rows)}
    return {
        "version": "2.60.0",
        "address": "10.0.0.1",
        "resources": has,
        "tasks": tasks,
        "seconds": [5.0, 6.0, 7.0],
    }


@pytest.mark.parametrize(
    ("rows", "verdict", "words"),
    [
        ([(1, "0", "u0", ""), (2, "1", "u1", "")], "pass", "CUDA_VISIBLE_DEVICES=1 u1"),
        ([(1, "0", "u0", ""), (2, "1", "u0", "")], "fail", "tasks share a GPU"),
        ([(1, "0,1", "u0", ""), (2, "0,1", "u0", "")], "fail", "tasks share a GPU"),
        ([(1, "0", "u0", ""), (1, "1", "u1", "")], "fail", "2 tasks ran in 1 process"),
        ([(1, "0", "u0", ""), (2, "1", "", "no CUDA")], "fail", "could not compute"),
        (
            [(n, str(n), "", "torch is not in this environment") for n in (1, 2)],
            "warn",
            "no task has computed",
        ),
    ],
)
def test_each_task_of_ray_needs_a_gpu_of_its_own(
    rows: list[tuple[int, str, str, str]], verdict: str, words: str
) -> None:
    start, tasks = cluster.judge_ray(ray_answer(*rows), 2, gpu=True)
    assert "ray 2.60.0 at 10.0.0.1 (CPU 2, GPU 2)" in start.evidence
    assert (tasks.name, tasks.verdict) == ("tasks", verdict)
    assert words in tasks.evidence


def test_a_small_dev_shm_is_read_from_what_ray_says() -> None:
    said = (
        "WARNING: The object store is using /tmp/x instead of /dev/shm because /dev/shm has only"
        " 67108864 bytes available. This will harm performance!"
    )
    (found,) = cluster.small_store(said)
    assert (found.verdict, "67,108,864 bytes" in found.evidence) == ("warn", True)
    assert not list(cluster.small_store("Started a local Ray instance."))


def test_a_proxy_that_would_be_asked_for_this_machine_is_named() -> None:
    (found,) = cluster.proxies({"HTTP_PROXY": "http://me:secret@proxy:3128", "no_proxy": "a.b"})
    assert "http_proxy=http://proxy:3128; no_proxy=a.b does not name" in found.evidence
    assert "export no_proxy=127.0.0.1,localhost" in found.advice
    open_way = {"http_proxy": "http://proxy:3128", "NO_PROXY": "localhost, 127.0.0.1"}
    assert not list(cluster.proxies(open_way))
    assert not list(cluster.proxies({}))


def test_what_keeps_ray_from_starting_is_looked_for_on_the_machine() -> None:
    here = Captured("docker-h100-2")
    here.says("getent", "ahosts", (here.read("/proc/sys/kernel/hostname") or "").strip(), out="")
    found = {check.name for check in cluster.suspects(here, {}, 2)}
    assert {"hostname", "shared memory"} <= found
    here.loopback = False
    assert "loopback" in {check.name for check in cluster.suspects(here, {}, 2)}


def test_rays_sockets_fit_into_its_folder_whatever_tmpdir_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("d" * 60)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    folder = extras.short_folder()
    try:
        longest = f"{folder}/session_2026-12-01_06-27-34_666000_4194304/sockets/plasma_store"
        assert len(os.fsencode(longest)) <= 107
        assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        folder.rmdir()
