"""The main job: build, inspect, install, use, roll back, on real packages."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.conftest import Demo, mirror, mirror_json

ASK_MODEL = """
import socket, sys
def refuse(*_): raise OSError("a socket was opened")
socket.socket.connect = refuse
from huggingface_hub import snapshot_download
by_id = snapshot_download("mirror/tiny-llama")
from pathlib import Path
import json, os
from safetensors import safe_open
from tokenizers import Tokenizer
for folder in (Path(by_id), Path(os.environ["MIRROR_MODELS"]) / "mirror/tiny-llama"):
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "llama", config
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("hello").ids
    assert ids and max(ids) < config["vocab_size"]
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert "model.embed_tokens.weight" in weights.keys()
print("loaded", by_id)
"""


def run_shell(script: str, *, before: Sequence[str] = ()) -> str:
    """A POSIX shell with an empty environment, as a service or cron job would have."""
    done = subprocess.run(
        [*before, "env", "-i", "PATH=/usr/bin:/bin", "HOME=/nonexistent", "sh", "-euc", script],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below a folder, with size and time of change."""
    return {
        str(path.relative_to(folder)): (status.st_size, status.st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
        for status in [path.stat()]
    }


def test_the_same_again_is_done_in_a_second_and_changes_nothing(demo_bundle: Demo) -> None:
    before = demo_bundle.bundle.stat()
    times = []
    for _ in range(3):
        # Seconds of the processor, which other tests at the same time make half as much again at
        # most; `make bench` has those of the clock.
        start = os.times()
        again = mirror_json("build", "manifests/demo.yaml", cwd=demo_bundle.folder)
        end = os.times()
        times.append(
            end.children_user + end.children_system - start.children_user - start.children_system
        )
        assert again["digest"] == demo_bundle.digest
        assert again["changed"] is False
    after = demo_bundle.bundle.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert min(times) < 1.5, times


def test_two_builds_of_one_lock_are_the_same_bytes(demo_bundle: Demo, tmp_path: Path) -> None:
    other = tmp_path / "again.tar.gz"
    mirror("build", "manifests/demo.yaml", "-o", other, cwd=demo_bundle.folder)
    assert other.read_bytes() == demo_bundle.bundle.read_bytes()


def test_the_lock_names_no_host_and_no_folder(demo_bundle: Demo) -> None:
    text = (demo_bundle.folder / "manifests" / "demo.lock.toml").read_text(encoding="utf-8")
    assert "://" not in text
    assert str(demo_bundle.folder) not in text
    assert mirror("lock", "manifests/demo.yaml", "--check", cwd=demo_bundle.folder)


def test_a_stale_lock_is_told_and_made_again(demo_bundle: Demo, tmp_path: Path) -> None:
    shutil.copytree(demo_bundle.folder / "manifests", tmp_path / "manifests")
    note = tmp_path / "manifests" / "demo.yaml"
    note.write_text(note.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    # demo.yaml carries itself as a plain file: its bytes are part of what was locked.
    done = mirror("lock", "manifests/demo.yaml", "--check", cwd=tmp_path, code=2)
    assert "mirror lock" in done.stderr
    old = (tmp_path / "manifests/demo.lock.toml").read_text(encoding="utf-8").splitlines()
    mirror("lock", "manifests/demo.yaml", cwd=tmp_path)
    new = (tmp_path / "manifests/demo.lock.toml").read_text(encoding="utf-8").splitlines()
    assert len([line for line in new if line not in old]) == 3  # inputs, size and hash


def test_inspect_tells_what_is_inside(demo_bundle: Demo) -> None:
    seen = mirror_json("inspect", demo_bundle.bundle, "--deep")
    kinds = {artifact["kind"] for artifact in seen["artifacts"]}
    assert kinds == {"bundle", "tool", "wheels", "conda", "models", "files"}
    assert seen["digest"] == demo_bundle.digest
    assert seen["checked"] is True
    assert not any(a["path"].startswith("wheels/torch-") for a in seen["artifacts"])
    text = mirror("inspect", demo_bundle.bundle, "--files").stdout
    assert "models/mirror/tiny-llama/model.safetensors" in text
    assert "expects  torch==" in text


def test_plain_tar_and_sha256sum_agree(demo_bundle: Demo, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", demo_bundle.bundle, "-C", tmp_path], check=True)
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path, check=True)
    unpacked = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    with tarfile.open(demo_bundle.bundle) as tar:
        assert {member.name for member in tar} == unpacked
    listed = {a["path"] for a in mirror_json("inspect", demo_bundle.bundle)["artifacts"]}
    assert unpacked == listed | {"mirror-bundle.json", "mirror-bundle.json.sig"}


def test_plain_pip_installs_from_the_unpacked_bundle(demo_bundle: Demo, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", demo_bundle.bundle, "-C", tmp_path], check=True)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    options = ["--isolated", "--no-index", "--find-links", "wheels", "--require-hashes"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    subprocess.run(
        [python, "-m", "pip", "install", "-q", *options, "--no-deps", "-r", "requirements.txt"],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    subprocess.run([python, "-c", "import tokenizers, safetensors"], check=True)


def test_pip_sync_takes_the_same_file(demo_bundle: Demo, tmp_path: Path) -> None:
    subprocess.run(["tar", "-xzf", demo_bundle.bundle, "-C", tmp_path], check=True)
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    environment["PIP_CONFIG_FILE"] = os.devnull
    subprocess.run(
        [
            *(sys.executable, "-m", "piptools", "sync", "--python-executable", python),
            *("--no-index", "--find-links", "wheels", "--pip-args", "--no-deps"),
            "requirements.txt",
        ],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    subprocess.run([python, "-c", "import tokenizers, safetensors"], check=True)


def test_the_environment_has_what_the_lock_names(demo: Demo) -> None:
    code = (
        "import importlib.metadata as m, sys\n"
        "for line in sys.stdin:\n"
        "    name, version, place = line.split()\n"
        "    found = m.distribution(name)\n"
        "    assert found.version == version, (name, found.version)\n"
        "    inside = str(found.locate_file('')).startswith(sys.prefix)\n"
        "    assert inside == (place == 'env'), name\n"
        "import accelerate, torch, pip\n"
    )
    artifacts = mirror_json("inspect", demo.bundle)["artifacts"]
    wheels = [a["path"].split("/")[1] for a in artifacts if a["path"].startswith("wheels/")]
    lines = ["{} {} env".format(*name.split("-")[:2]) for name in wheels]
    expected = mirror_json("inspect", demo.bundle)["target"]["provided"]
    lines += ["{} {} over".format(*item.split("==")) for item in expected]
    subprocess.run([demo.python, "-I", "-c", code], input="\n".join(lines), text=True, check=True)


def test_the_model_loads_by_id_and_by_path_with_sockets_refused(demo: Demo) -> None:
    script = demo.folder / "ask_model.py"
    script.write_text(ASK_MODEL, encoding="utf-8")
    said = run_shell(
        f". {demo.root}/current/activate; python {script}", before=["unshare", "-r", "-n"]
    )
    assert said.startswith("loaded ")


def test_the_conda_package_and_the_file_are_in_place(demo: Demo) -> None:
    said = run_shell(f'. {demo.root}/current/activate; demo-notes; cat "$DEMO_NOTES"')
    assert str(demo.generation / "env") in said
    assert said.count("came to you as a conda package") == 2  # its program, its activate.d script
    carried = demo.generation / "files" / "configs" / "demo.yaml"
    assert carried.read_bytes() == (demo.folder / "manifests" / "demo.yaml").read_bytes()


def test_bytes_are_there_once(demo: Demo) -> None:
    [weights] = (demo.generation / "models").glob("mirror/tiny-llama/model.safetensors")
    assert weights.resolve().stat().st_nlink >= 2
    name = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert os.path.samefile(weights, demo.root / "store" / "sha256" / name[:2] / name)


def test_install_again_changes_nothing(demo: Demo) -> None:
    again = mirror_json("install", demo.bundle, "--root", demo.root)
    assert again["changed"] is False
    assert again["generation"] == 1


def test_over_an_environment_that_stays_as_it_is(demo: Demo, tmp_path: Path) -> None:
    over = Path(sys.prefix)
    before = listing(over)
    done = mirror_json("install", demo.bundle, "--root", tmp_path / "r", "--over", over)
    assert done["changed"] is True
    assert listing(over) == before


def test_generations_are_listed_and_rolled_back(demo: Demo, tmp_path: Path) -> None:
    root = tmp_path / "root"
    small = tmp_path / "mirror.yaml"
    note = tmp_path / "note.txt"
    for version in ("1", "2"):
        note.write_text(version, encoding="utf-8")
        small.write_text(
            f"name: notes\nversion: {version}\nfiles: [{{path: note.txt, to: note.txt}}]\n",
            encoding="utf-8",
        )
        mirror("build", "-o", f"{version}.tar.gz", cwd=tmp_path)
        mirror("install", tmp_path / f"{version}.tar.gz", "--root", root)
    assert (root / "current/files/note.txt").read_text(encoding="utf-8") == "2"
    rows = mirror_json("list", "--root", root)
    assert [(r["generation"], r["version"], r["current"]) for r in rows] == [
        (1, "1", False),
        (2, "2", True),
    ]
    assert mirror_json("rollback", "--root", root)["version"] == "1"
    assert (root / "current/files/note.txt").read_text(encoding="utf-8") == "1"
    assert "* " in mirror("list", "--root", root).stdout.splitlines()[0]


def test_the_bundle_installs_itself_with_no_network_and_no_environment(
    demo: Demo, tmp_path: Path
) -> None:
    python = getattr(sys, "_base_executable", sys.executable)
    said = run_shell(
        f"cd {tmp_path}\n"
        f"tar -xzf {demo.bundle} install.sh tool\n"
        f"PYTHON={python} sh install.sh {demo.bundle} --root {tmp_path}/root --over {sys.prefix}\n"
        f"{tmp_path}/root/current/tool/bin/mirror list\n"
        f". {tmp_path}/root/current/activate\n"
        "mirror list --json\n"
        "ls tool | grep -v whl || true\n",
        before=["unshare", "-r", "-n"],
    )
    assert "generation 1 is in use: demo 1" in said
    assert '"current": true' in said
    assert "site" not in said.splitlines()[-1]
    # The installed mirror mends itself, and nothing that it runs leaves bytecode beside its code.
    said = run_shell(
        f"cd {tmp_path}\n"
        "rm -r root/current/env/conda-meta\n"
        f". {tmp_path}/root/current/activate\n"
        "mirror verify --store -q && exit 1\n"
        f"mirror repair {demo.bundle}\n"
        "mirror verify --store --json\n",
    )
    assert '"verdict": "pass"' in said
    assert '"verdict": "warn"' not in said


def test_dry_run_writes_nothing(demo_bundle: Demo, tmp_path: Path) -> None:
    done = mirror("install", demo_bundle.bundle, "--root", tmp_path / "root", "--dry-run")
    assert "would install demo 1" in done.stdout
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("stream", ["pipe", "narrow"])
def test_output_in_a_pipe_is_plain(demo: Demo, stream: str) -> None:
    done = mirror(
        *("inspect", demo.bundle, "--deep"),
        environment={"COLUMNS": "80" if stream == "narrow" else "200"},
    )
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stderr
