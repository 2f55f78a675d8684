"""mirror verify and mirror run on real processes: the trainer, accelerate, a real environment."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.models import deploy as models_deploy
from mirror.errors import MachineError
from mirror.machine import this_python
from mirror.store.environment import launch_settings
from mirror.store.generations import Root
from mirror.verify import processes, ranks, verify
from mirror.verify.launch import Job, Limits, launch
from mirror.verify.report import Report

TINY = Path(__file__).resolve().parents[2] / "manifests" / "tiny-llama"
MODEL = "mirror/tiny-llama"


class Lines(Quiet):
    """Remembers the steps."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)


def install(
    folder: Path, *, env: bool = True, model: bool = True, verify: Mapping[str, Json] | None = None
) -> Root:
    """A root with one generation: the tiny model, and an environment over this one's packages."""
    root = Root(folder)
    root.prepare()
    artifacts: list[Artifact] = []
    if model:
        files = {path.name: path.read_bytes() for path in TINY.iterdir()}
        commit = hashlib.sha1("".join(sorted(files)).encode(), usedforsecurity=False).hexdigest()
        origin = {"repo": MODEL, "revision": "main", "commit": commit}
        artifacts = [
            Artifact(
                "models",
                f"models/{MODEL}/{name}",
                len(data),
                root.blobs.put(data),
                origin={**origin, "file": name},
            )
            for name, data in sorted(files.items())
        ]
    import torch

    target = Target(this_python(), "linux-x86_64", provided=(f"torch=={torch.__version__}",))
    index = Index(
        name="small",
        version="1",
        tool="0.1.0",
        lock="0" * 64,
        target=target if env else None,
        entries=tuple(Entry(artifact) for artifact in artifacts),
        verify=verify or {},
    )
    generation = root.begin()
    if artifacts:
        site = Site(
            index=index,
            blobs=root.blobs,
            generation=generation,
            python=Path(sys.executable),
            progress=Quiet(),
        )
        models_deploy.deploy(artifacts, site)
    if env:
        venv.create(generation.env, symlinks=True)
        inside = next(generation.env.glob("lib/python3*/site-packages"))
        over = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in over]
        (inside / "over.pth").write_text("".join(lines), encoding="utf-8")
    root.finish(generation, index)
    root.commit(generation)
    return root


def check(report: Report, stage: str, name: str) -> tuple[str, str]:
    """Verdict and evidence of one check."""
    found = next(s for s in report.stages if s.name == stage)
    one = next(c for c in found.checks if c.name == name)
    return one.verdict, one.evidence


def verdicts(report: Report) -> dict[str, str]:
    return {stage.name: stage.verdict for stage in report.stages}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests prove the CPU's way, also on a machine with GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, Report]:
    """One whole verification."""
    declared: dict[str, Json] = {
        "model": MODEL,
        "imports": ["accelerate", "json.decoder", "surely_absent?"],
        "steps": 40,
    }
    root = install(tmp_path_factory.mktemp("verified"), verify=declared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        report = verify(root, gpus=None, report_folder=None, progress=Lines())
    return root, report


def test_without_gpus_two_cpu_processes_train_and_the_first_line_says_so(
    verified: tuple[Root, Report],
) -> None:
    _, report = verified
    assert report.headline == "No GPU was proved: 2 CPU processes trained together (gloo)."
    assert verdicts(report) == {
        "store": "pass",
        "host": "warn",  # no GPU
        "environment": "pass",
        "models": "pass",
        "single": "pass",
        "multi": "pass",
    }, report
    assert report.verdict == "warn"
    assert report.gpus == 0


def test_the_report_has_the_published_shape(verified: tuple[Root, Report]) -> None:
    _, report = verified
    document = json.loads((report.folder / "report.json").read_text(encoding="utf-8"))
    assert document["verdict"] == "warn"
    assert {frozenset(stage) for stage in document["stages"]} == {
        frozenset({"name", "verdict", "seconds", "checks"})
    }
    multi = document["multi"]
    assert (multi["world_size"], multi["backend"]) == (2, "gloo")
    assert [rank["rank"] for rank in multi["ranks"]] == [0, 1]
    assert len({rank["pid"] for rank in multi["ranks"]}) == 2
    assert len({rank["parameters_sha256"] for rank in multi["ranks"]}) == 1
    assert multi["model"]["name"].endswith(MODEL)
    assert len(multi["losses"]) == len(multi["single_losses"]) == 40
    # Two processes and one: nearly the same, but not one run reported twice.
    assert 0 < multi["largest_difference"] < multi["tolerance"] / 10
    assert multi["losses"][-1] < 0.5 * multi["losses"][0]
    page = (report.folder / "report.html").read_text(encoding="utf-8")
    assert "No GPU was proved" in page
    assert page.count("<path") == 2


def test_a_pass_of_many_leaves_launch_settings(verified: tuple[Root, Report]) -> None:
    root, report = verified
    written = json.loads(root.current().launch_file.read_text(encoding="utf-8"))
    assert (written["world_size"], written["backend"], written["env"]) == (2, "gloo", {})
    assert written["report"] == str(report.folder)
    assert launch_settings(root.current()) == {}


def test_the_ranks_said_nothing_on_their_way(verified: tuple[Root, Report]) -> None:
    """No warning of torch or accelerate, which people would read as a fault."""
    _, report = verified
    for folder in ("single", "multi"):
        for rank in (0, 1):
            assert ranks.log_tail(report.folder / "logs" / folder, rank) == []


def test_optional_and_declared_imports(verified: tuple[Root, Report]) -> None:
    _, report = verified
    assert check(report, "environment", "import json.decoder")[0] == "pass"
    assert check(report, "environment", "import surely_absent")[0] == "skip"


def test_a_model_loads_by_id_and_by_path_with_no_network(verified: tuple[Root, Report]) -> None:
    _, report = verified
    for name in ("files", "config", "weights", "tokenizer", "by id", "network"):
        assert check(report, "models", f"{MODEL}: {name}")[0] == "pass"


def test_another_report_beside_the_first_keeps_its_logs_apart(
    verified: tuple[Root, Report], tmp_path: Path
) -> None:
    """A rank's old result in a report's folder must not pass for a new one."""
    root = install(tmp_path / "root", env=False)
    (tmp_path / "report" / "logs" / "single").mkdir(parents=True)
    report = verify(root, gpus=None, report_folder=tmp_path / "report", progress=Quiet())
    assert (tmp_path / "report" / "logs-2" / "models").is_dir()
    assert report.folder == tmp_path / "report"


def test_a_bundle_without_an_environment_is_checked_as_far_as_can_be(tmp_path: Path) -> None:
    report = verify(install(tmp_path, env=False), gpus=None, report_folder=None, progress=Quiet())
    assert verdicts(report)["environment"] == "skip"
    assert verdicts(report)["single"] == verdicts(report)["multi"] == "skip"
    assert verdicts(report)["models"] == "pass"
    assert report.headline.startswith("Training was not proved: ")
    assert report.verdict == "warn"


def test_gpus_that_are_asked_for_and_not_there_fail(tmp_path: Path) -> None:
    report = verify(install(tmp_path), gpus=2, report_folder=None, progress=Quiet())
    assert report.verdict == "fail"
    verdict, evidence = check(report, "environment", "torch's gpus")
    assert verdict == "fail"
    assert evidence.startswith("2 asked for; torch can use 0 GPUs")
    assert verdicts(report)["single"] == verdicts(report)["multi"] == "skip"
    assert not report.gpus
    report = verify(
        install(tmp_path / "bare", env=False), gpus=2, report_folder=None, progress=Quiet()
    )
    assert report.verdict == "fail"


def test_a_changed_byte_stops_all_that_would_rely_on_it(tmp_path: Path) -> None:
    root = install(tmp_path)
    artifact = root.current().index().artifacts[0]
    blob = root.blobs.path(artifact.sha256)
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes().replace(b"a", b"b", 1))
    report = verify(root, gpus=None, report_folder=None, progress=Quiet())
    verdict, evidence = check(report, "store", "store")
    assert verdict == "fail"
    assert artifact.path in evidence
    assert set(verdicts(report).values()) == {"fail", "warn", "skip"}
    assert report.headline == "Verification failed: store."


def test_a_broken_import_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    root = install(tmp_path, model=False, verify={"imports": ["crashes", "absent", "1+1"]})
    inside = next(root.current().env.glob("lib/python3*/site-packages"))
    (inside / "crashes.py").write_text("import os; os.abort()", encoding="utf-8")
    report = verify(root, gpus=None, report_folder=None, progress=Quiet())
    assert "SIGABRT" in check(report, "environment", "import crashes")[1]
    assert "No module named 'absent'" in check(report, "environment", "import absent")[1]
    assert check(report, "environment", "import 1+1")[0] == "fail"
    assert verdicts(report)["multi"] == "pass"
    assert report.verdict == "fail"
    assert report.multi is not None
    assert report.multi.ranks[0].model["name"] == "built-in"


def test_a_model_that_is_not_found_by_its_id_fails(tmp_path: Path) -> None:
    root = install(tmp_path, env=False)
    generation = root.current()
    (generation.hub / "models--mirror--tiny-llama" / "refs" / "main").unlink()
    root.finish(generation, generation.index())  # as if it had been installed so
    report = verify(root, gpus=None, report_folder=None, progress=Quiet())
    assert check(report, "models", f"{MODEL}: by id")[0] == "fail"


BROKEN = """
import builtins, sys
real = builtins.__import__
def hooked(*arguments, **options):
    found = real(*arguments, **options)
    library = sys.modules.get("accelerate.accelerator")
    if hasattr(library, "Accelerator") and builtins.__import__ is hooked:
        builtins.__import__ = real
        import torch.distributed as dist
        library.Accelerator.prepare_model = lambda self, model, **options: model
        broadcast = dist.broadcast
        def damaged(values, *where, **more):
            broadcast(values, *where, **more)
            if values.numel() == 2**20:
                values[-1] += 1
        dist.broadcast = damaged
    return found
builtins.__import__ = hooked
"""


def test_gradients_not_averaged_and_damaged_collectives_are_found(tmp_path: Path) -> None:
    """The checks that a pass rests on can fail: an environment in which accelerate is broken."""
    root = install(tmp_path, model=False, verify={"precision": "fp16"})
    inside = next(root.current().env.glob("lib/python3*/site-packages"))
    (inside / "sitecustomize.py").write_text(BROKEN, encoding="utf-8")
    report = verify(root, gpus=None, report_folder=None, progress=Quiet())
    assert verdicts(report)["single"] == "warn"  # fp16 needs a GPU
    assert check(report, "multi", "world size")[0] == "pass"
    assert check(report, "multi", "parameters")[0] == "fail"
    assert check(report, "multi", "equals single")[0] == "fail"
    verdict, evidence = check(report, "multi", "collectives")
    assert (verdict, evidence) == (
        "fail",
        "wrong values: rank 0: broadcast of 4194304 B; rank 1: broadcast of 4194304 B",
    )
    assert not root.current().launch_file.exists()


def test_bf16_agrees_within_its_tolerance(tmp_path: Path) -> None:
    root = install(tmp_path, verify={"precision": "bf16", "steps": 20})
    report = verify(root, gpus=None, report_folder=None, progress=Quiet())
    assert verdicts(report)["multi"] == "pass", report
    assert report.multi is not None
    assert report.multi.ranks[0].precision == "bf16"


def test_nothing_installed(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="nothing is installed"):
        verify(Root(tmp_path), gpus=None, report_folder=None, progress=Quiet())


# -- faults ------------------------------------------------------------------------------------


def job(folder: Path, *, gpu: bool = False, steps: int = 100_000) -> Job:
    return Job(
        python=Path(sys.executable),
        folder=folder / "job",
        processes=2,
        gpu=gpu,
        arguments=("train", "--steps", str(steps), "--batch", "24"),
        steps=steps,
        environ=dict(os.environ),
    )


class Saboteur(threading.Thread):
    """Waits until a rank trains, then sends a signal to it, or to whoever `victim` says."""

    def __init__(self, folder: Path, rank: int, number: int, victim: int | None = None) -> None:
        super().__init__(daemon=True)
        self.folder, self.rank, self.number, self.victim = folder, rank, number, victim
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.02):
            phase = ranks.read_phase(self.folder, self.rank)
            if phase and phase.name == "step" and (phase.step or 0) > 3:
                os.kill(self.victim or phase.pid, self.number)
                return


def test_a_rank_that_dies_is_named(tmp_path: Path) -> None:
    Saboteur(tmp_path / "job", 1, signal.SIGKILL).start()
    outcome = launch(job(tmp_path))
    assert outcome.problems[0].startswith("rank 1 left no result, last phase step ")
    assert "SIGKILL" in outcome.problems[0]
    assert not processes.descendants()


def test_a_rank_that_stands_still_is_named(tmp_path: Path) -> None:
    Saboteur(tmp_path / "job", 1, signal.SIGSTOP).start()
    with processes.nothing_left_behind():
        outcome = launch(job(tmp_path), limits=Limits(stall=15))
    assert outcome.problems[:1] == ("no rank has moved on for 15 s",)
    assert outcome.problems[1].startswith("rank 1 hangs: its process ")
    assert "graph.py" in outcome.problems[2]  # rank 0 waits in the backward pass
    assert not processes.descendants()


def test_processes_that_know_nothing_of_each_other_are_no_group(tmp_path: Path) -> None:
    """accelerate --multi_gpu without GPUs: N worlds of one, exit code 0."""
    outcome = launch(job(tmp_path, gpu=True, steps=10))
    assert len(outcome.problems) == 2
    assert "ran in a world of 1" in outcome.problems[0]


def test_a_launcher_that_is_killed_leaves_nobody(tmp_path: Path) -> None:
    """Each of torch's workers is a session of its own: they outlive their launcher."""
    started: list[int] = []

    class Killer(Saboteur):
        def run(self) -> None:
            while not self.over.wait(0.02):
                phase = ranks.read_phase(self.folder, self.rank)
                if phase and phase.name == "step":
                    started.extend(processes.descendants())
                    status = Path(f"/proc/{phase.pid}/status").read_text(encoding="utf-8")
                    parent = next(x for x in status.splitlines() if x.startswith("PPid"))
                    os.kill(int(parent.split()[1]), signal.SIGKILL)
                    return

    Killer(tmp_path / "job", 0, signal.SIGKILL).start()
    with processes.nothing_left_behind():
        outcome = launch(job(tmp_path))
    assert len(started) >= 3
    assert outcome.problems
    assert not processes.descendants()
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_leaves_nobody(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, kill and a lost terminal, in a process of its own, while a rank is stopped."""
    root = install(tmp_path / "root", model=False, verify={"steps": 100_000})
    script = f"""
import sys
from pathlib import Path
from mirror.core.progress import Quiet
from mirror.store.generations import Root
from mirror.verify import verify
try:
    verify(Root(Path({str(root.path)!r})), gpus=None, report_folder=Path({str(tmp_path)!r}) / "r",
           progress=Quiet())
except KeyboardInterrupt:
    sys.exit(130)
"""
    running = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    single = tmp_path / "r" / "logs" / "single"
    Saboteur(single, 0, number, running.pid).start()
    assert running.wait(60) == 130
    phase = ranks.read_phase(single, 0)
    assert phase is not None
    assert not Path(f"/proc/{phase.pid}").exists()


def test_the_network_is_refused_by_the_probe(tmp_path: Path) -> None:
    """The refusal itself works: a look-up and a connection both raise, and are noted."""
    code = """
from trainer.offline import refuse_sockets
attempts = refuse_sockets()
import socket, urllib.request
for go in (lambda: urllib.request.urlopen("http://example.invalid"),
           lambda: socket.socket().connect(("127.0.0.1", 9))):
    try:
        go()
    except OSError as error:
        assert "refused while models are checked" in str(error), error
    else:
        raise SystemExit("reached out")
assert len(attempts) == 2, attempts
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=TINY.parents[1], check=False)
    assert done.returncode == 0
    assert socket.socket.connect.__name__ == "connect"
