"""mirror run and the variables of a generation."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mirror.core.index import Index
from mirror.errors import MachineError, UsageError
from mirror.run import run
from mirror.store import environment
from mirror.store.generations import Root

PYTHON = sys.executable


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A generation with an environment of one program, in a folder whose name needs quoting."""
    found = Root(tmp_path / "it's a, root")
    found.prepare()
    generation = found.begin()
    bin_folder = generation.env / "bin"
    bin_folder.mkdir(parents=True)
    hello = bin_folder / "hello"
    hello.write_text("#!/bin/sh\necho hello from the environment\n", encoding="utf-8")
    hello.chmod(0o755)
    generation.wheels.mkdir()
    (generation.env / "pyvenv.cfg").touch()
    found.finish(generation, Index("n", "1", "0.1.0", "0" * 64, None, ()))
    found.commit(generation)
    return found


def dump(file: Path) -> list[str]:
    """A command that writes its variables to a file."""
    code = "import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))"
    return [PYTHON, "-c", code, str(file)]


def test_the_environments_programs_come_first(
    root: Root, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(root, gpus=None, command=["hello"]) == 0
    assert capfd.readouterr().out == "hello from the environment\n"


def test_the_exit_code_is_the_commands(root: Root) -> None:
    assert run(root, gpus=None, command=[PYTHON, "-c", "raise SystemExit(7)"]) == 7
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert run(root, gpus=None, command=[PYTHON, "-c", kill]) == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_is_told(root: Root, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-program is neither"):
        run(root, gpus=None, command=["no-such-program"])
    with pytest.raises(UsageError, match="no command"):
        run(root, gpus=None, command=[])
    broken = tmp_path / "broken"
    broken.write_text("#!/nonexistent/interpreter\n", encoding="utf-8")
    broken.chmod(0o755)
    with pytest.raises(UsageError, match="cannot be run"):
        run(root, gpus=None, command=[str(broken)])


def test_what_the_command_is_told(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    environment.write_launch(root.current(), root.path, {"env": {"NCCL_P2P_DISABLE": "1"}})
    assert run(root, gpus=None, command=dump(tmp_path / "seen")) == 0
    seen = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))
    generation = root.current()
    assert seen["PYTHONPATH"] == f"{project}{os.pathsep}/elsewhere"
    assert seen["HF_HUB_CACHE"] == str(generation.hub)
    assert seen["MIRROR_MODELS"] == str(generation.models)
    assert seen["HF_HUB_OFFLINE"] == seen["TRANSFORMERS_OFFLINE"] == seen["PIP_NO_INDEX"] == "1"
    assert seen["VIRTUAL_ENV"] == str(generation.env)
    assert seen["NCCL_NVLS_ENABLE"] == "0"
    assert seen["NCCL_P2P_DISABLE"] == "1"
    assert " " not in seen["PIP_FIND_LINKS"]
    assert "," not in seen["UV_FIND_LINKS"]


def test_activate_tells_a_shell_the_same(root: Root, tmp_path: Path) -> None:
    environment.write_activate(root.current(), root.path)
    script = f". {shlex.quote(str(root.path / 'current' / 'activate'))}; hello; env -0"
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody"}
    done = subprocess.run(["sh", "-euc", script], env=bare, capture_output=True, check=True)
    said, _, rest = done.stdout.decode().partition("\n")
    assert said == "hello from the environment"
    seen = dict(item.split("=", 1) for item in rest.split("\0") if "=" in item)
    wanted = environment.variables(root.current())
    wanted["HF_MODULES_CACHE"] = "/home/somebody/.cache/mirror/hf-modules"
    assert {name: seen[name] for name in wanted} == wanted
    assert seen["MIRROR_ROOT"] == str(root.path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"env": 1}', '{"env": {"A B": "1"}}'])
def test_damaged_launch_settings_are_told(root: Root, text: str) -> None:
    root.current().launch_file.write_text(text, encoding="utf-8")
    with pytest.raises(MachineError, match="is not what mirror verify writes"):
        run(root, gpus=None, command=["hello"])


SMI = "#!/bin/sh\nfor n in 0 1 2 3; do echo $n, NVIDIA H200, GPU-$n, 580.1, 1000, 0; done\n"


@pytest.mark.parametrize(
    ("visible", "gpus", "expected"),
    [(None, 2, "0,1"), ("3,1,0", 2, "3,1"), ("2", 1, "2"), (None, None, None), ("1", None, "1")],
)
def test_gpus_are_limited_to_the_first_visible(
    root: Root,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    gpus: int | None,
    expected: str | None,
) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI, encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert run(root, gpus=gpus, command=dump(tmp_path / "seen")) == 0
    seen = json.loads((tmp_path / "seen").read_text(encoding="utf-8"))
    assert seen.get("CUDA_VISIBLE_DEVICES") == expected
    with pytest.raises(MachineError, match="5 GPUs were asked for, and"):
        run(root, gpus=5, command=["hello"])


HANDLER = """
import signal, sys, time
got = []
for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
    signal.signal(getattr(signal, name), lambda number, frame: got.append(number))
open(sys.argv[1], "w").close()
while not got:
    time.sleep(0.01)
time.sleep(0.2)  # a second one would come now
sys.exit(100 + sum(got))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_mirror_alone_reaches_the_command_once(
    root: Root, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler sends one so."""
    monkeypatch.setattr("mirror.run._in_foreground", lambda: False)
    ready = tmp_path / "ready"

    def send() -> None:
        while not ready.exists():
            threading.Event().wait(0.02)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    code = run(root, gpus=None, command=[PYTHON, "-c", HANDLER, str(ready)])
    sender.join()
    assert code == 100 + number


def test_ctrl_c_at_a_terminal_reaches_the_command_once(root: Root, tmp_path: Path) -> None:
    """The terminal sends it to both; mirror must not send it again, and must outlive it."""
    ready = tmp_path / "ready"
    ours = (
        "import sys; from pathlib import Path; from mirror.run import run;"
        " from mirror.store.generations import Root;"
        " sys.exit(run(Root(Path(sys.argv[1])), gpus=None, command=sys.argv[2:]))"
    )
    terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    command = [PYTHON, "-c", HANDLER, str(ready)]
    line = [PYTHON, "-c", terminal, PYTHON, "-c", ours, str(root.path), *command]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as running:
        while not ready.exists():
            assert running.poll() is None
            threading.Event().wait(0.02)
        assert running.stdin is not None
        running.stdin.write(b"\x03")
        running.stdin.flush()
        assert running.wait(30) == 100 + signal.SIGINT
