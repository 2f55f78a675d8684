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

from mirror import logs
from mirror.core.artifact import Json
from mirror.core.index import Index
from mirror.errors import MachineError, UsageError
from mirror.run import JobError, devices, run
from mirror.run.failure import Ending, explain
from mirror.run.output import Output
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
    monkeypatch.setattr("mirror.run.plain._in_foreground", lambda: False)
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


# -- a Python script ----------------------------------------------------------------------------


@pytest.fixture
def project(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory; the environment has a Python, and there is no GPU."""
    (root.current().env / "bin" / "python").symlink_to(PYTHON)
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return folder


def script(project: Path, text: str) -> list[str]:
    (project / "train.py").write_text(text, encoding="utf-8")
    return ["train.py"]


def the_logs(root: Root) -> Path:
    (folder,) = root.logs.glob("run-*")
    return folder


def test_a_script_is_run_by_the_environments_python_as_one_process_without_gpus(
    root: Root, project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "OMPI_COMM_WORLD_SIZE"):
        monkeypatch.setenv(name, "4")
    text = (
        "import os, sys; print(sys.executable, sys.argv[1:], 'A' * 200_000)\n"
        "print([n for n in os.environ if 'RANK' in n or 'WORLD' in n], file=sys.stderr)\n"
    )
    assert run(root, command=[*script(project, text), "--lr", "1e-3"]) == 0
    said = capfd.readouterr()
    python = root.current().python
    assert said.out == f"{python} ['--lr', '1e-3'] {'A' * 200_000}\n"
    assert said.err == "[]\n"
    folder = the_logs(root)
    assert (folder / "rank-0.stdout.log").read_text(encoding="utf-8") == said.out
    assert (folder / "rank-0.stderr.log").read_text(encoding="utf-8") == said.err


def test_a_module_is_a_script_too(
    root: Root, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "pack").mkdir()
    (project / "pack" / "train.py").write_text("import sys; print(sys.argv[1:])", encoding="utf-8")
    assert run(root, command=["-m", "pack.train", "-x"]) == 0
    assert capfd.readouterr().out == "['-x']\n"


def test_a_script_that_fails_has_its_exit_code_and_no_line_twice(
    root: Root, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(JobError) as caught:
        run(root, command=script(project, "print('last words'); raise SystemExit(7)"))
    assert caught.value.exit_code == 7
    assert caught.value.message == "train.py: it ended with exit code 7"
    assert caught.value.problems == ()
    assert str(the_logs(root)) in str(caught.value.hint)
    assert capfd.readouterr().out == "last words\n"


def test_a_crash_in_native_code_shows_the_line_of_python(
    root: Root, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    crash = "import os, signal\n\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    with pytest.raises(JobError, match="SIGSEGV") as caught:
        run(root, command=script(project, crash))
    assert caught.value.exit_code == 128 + signal.SIGSEGV
    assert 'train.py", line 3 in <module>' in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (
            "RuntimeError: No backend type associated with device type cpu",
            "A CPU tensor was given to an NCCL collective",
        ),
        (
            "RuntimeError: only dense CPU tensors can be pinned",
            "A tensor that is on the GPU already was to be pinned",
        ),
        (
            "AttributeError: 'SequentialSampler' object has no attribute 'set_epoch'",
            "set_epoch was called on a sampler that has no epochs",
        ),
    ],
)
def test_what_a_script_dies_of_is_called_by_its_name(
    root: Root, project: Path, words: str, name: str
) -> None:
    kind, _, text = words.partition(": ")
    with pytest.raises(JobError) as caught:
        run(root, command=script(project, f"raise {kind}({text!r})"))
    assert caught.value.exit_code == 1
    assert name in caught.value.problems[0]
    assert any(line.startswith("  do:") for line in caught.value.problems)
    assert run(root, command=script(project, f"print({words!r})")) == 0  # who lives has no fault


def test_processes_are_ended_with_the_script(root: Root, project: Path) -> None:
    """A helper that it started and forgot, in a session of its own."""
    text = (
        "import subprocess, sys\n"
        "line = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "helper = subprocess.Popen(line, start_new_session=True)\n"
        "print(helper.pid)\n"
    )
    assert run(root, command=script(project, text)) == 0
    pid = (the_logs(root) / "rank-0.stdout.log").read_text(encoding="utf-8").strip()
    assert not Path(f"/proc/{pid}").exists()


def test_scripts_that_are_not_there_are_told(root: Root, project: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no absent\.py in /"):
        run(root, command=["absent.py"])
    with pytest.raises(UsageError, match="-m names no module"):
        run(root, command=["-m"])
    with pytest.raises(UsageError, match="--processes is for a Python script, and hello is"):
        run(root, processes=2, command=["hello"])
    with pytest.raises(UsageError, match="--gpus runs a process on each GPU"):
        run(root, gpus=2, processes=2, command=script(project, ""))
    with pytest.raises(UsageError, match="--log is for the output of a Python script"):
        run(root, log=project / "log", command=["hello"])
    (root.current().env / "bin" / "python").unlink()
    with pytest.raises(MachineError, match="generation 1 has no Python"):
        run(root, command=script(project, ""))


def test_a_program_of_the_environment_may_be_called_like_a_script(
    root: Root, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    program = root.current().env / "bin" / "tool.py"
    program.write_text("#!/bin/sh\necho as it stands\n", encoding="utf-8")
    program.chmod(0o755)
    assert run(root, command=["tool.py"]) == 0
    assert capfd.readouterr().out == "as it stands\n"


def test_several_processes_without_accelerate_say_what_is_missing(
    root: Root, project: Path
) -> None:
    with pytest.raises(JobError, match="several processes need accelerate") as caught:
        run(root, processes=2, command=script(project, ""))
    assert caught.value.exit_code == 1
    assert "torchrun" in caught.value.problems[0]


def test_logs_go_where_one_may_write(
    root: Root, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    root.logs.rmdir()
    root.logs.touch()  # not even root can make a folder there
    assert run(root, command=script(project, "print(1)")) == 0
    (folder,) = (tmp_path / "state" / "mirror" / "log").glob("run-*")
    assert (folder / "rank-0.stdout.log").read_text(encoding="utf-8") == "1\n"
    own = project / "own"
    assert run(root, command=["train.py"], log=own) == 0
    assert (own / "rank-0.stdout.log").is_file()
    with pytest.raises(UsageError, match="own is not empty"):
        run(root, command=["train.py"], log=own)
    with pytest.raises(MachineError, match="cannot be written"):
        run(root, command=["train.py"], log=root.logs / "below a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(root.logs))
    with pytest.raises(MachineError, match="no folder for the logs") as caught:
        run(root, command=["train.py"])
    assert len(caught.value.problems) == 2


def test_two_runs_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    made = {logs.fresh([tmp_path / "a", tmp_path / "b"], "run") for _ in range(5)}
    assert len(made) == 5
    assert {folder.parent for folder in made} == {tmp_path / "a"}


# -- how many processes -------------------------------------------------------------------------


def python_with_torch(root: Root, usable: int) -> None:
    """An environment whose torch says how many GPUs it can use."""
    python = root.current().env / "bin" / "python"
    python.write_text(f"#!/bin/sh\necho a warning\necho {usable}\n", encoding="utf-8")
    python.chmod(0o755)


def crew_of(
    root: Root,
    visible: str | None = None,
    gpus: int | None = None,
    processes: int | None = None,
) -> devices.Crew:
    table = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    return devices.crew(root.current(), table, gpus=gpus, processes=processes)


@pytest.fixture
def four_gpus(root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text(SMI, encoding="utf-8")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    python_with_torch(root, 4)


@pytest.mark.usefixtures("four_gpus")
def test_a_script_runs_on_the_gpus_that_were_proved_else_on_all(root: Root) -> None:
    assert crew_of(root).gpus == ("0", "1", "2", "3")
    proved: dict[str, Json] = {"env": {}, "world_size": 2, "backend": "nccl"}
    environment.write_launch(root.current(), root.path, proved)
    assert crew_of(root).gpus == ("0", "1")
    environment.write_launch(root.current(), root.path, proved | {"world_size": 8})
    assert crew_of(root).gpus == ("0", "1", "2", "3")
    environment.write_launch(root.current(), root.path, proved | {"backend": "gloo"})
    assert crew_of(root).gpus == ("0", "1", "2", "3")
    assert crew_of(root, gpus=3) == devices.Crew(3, ("0", "1", "2"))
    assert crew_of(root, processes=3) == devices.Crew(3, ())
    with pytest.raises(MachineError, match="5 GPUs were asked for, and 4 are visible"):
        crew_of(root, gpus=5)


@pytest.mark.usefixtures("four_gpus")
def test_a_script_keeps_to_the_visible_gpus(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert crew_of(root, "3,1") == devices.Crew(2, ("3", "1"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert crew_of(root, "") == devices.Crew(1, None)


@pytest.mark.usefixtures("four_gpus")
def test_gpus_that_torch_cannot_use_are_no_reason_to_train_four_times_alone(root: Root) -> None:
    python_with_torch(root, 0)
    with pytest.raises(MachineError, match=r"4 GPUs are visible, and torch .* can use 0"):
        crew_of(root)
    python_with_torch(root, 1)
    assert crew_of(root, gpus=1) == devices.Crew(1, ("0",))
    with pytest.raises(MachineError, match="2 GPUs are visible"):
        crew_of(root, gpus=2)
    # What verify has proved is not asked again.
    proved: dict[str, Json] = {"env": {}, "world_size": 2, "backend": "nccl"}
    environment.write_launch(root.current(), root.path, proved)
    assert crew_of(root, gpus=2) == devices.Crew(2, ("0", "1"))


# -- what ranks say -----------------------------------------------------------------------------


def ranks_of(folder: Path, *texts: str) -> Path:
    """A folder as torch leaves it: a file for each rank's standard error."""
    for rank, text in enumerate(texts):
        place = folder / "log" / "none_x1" / "attempt_0" / str(rank)
        place.mkdir(parents=True, exist_ok=True)
        (place / "stdout.log").touch()
        with open(place / "stderr.log", "a", encoding="utf-8", newline="") as file:
            file.write(text)
    return folder


def test_lines_of_several_ranks_are_whole_and_marked(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Output(tmp_path, 2) as output:
        output.pass_on()  # nothing is there yet
        ranks_of(tmp_path, "one\ntw", "[rank1]: marked by torch\n\n")
        output.pass_on()
        assert capfd.readouterr().err == "[rank0]: one\n[rank1]: marked by torch\n[rank1]: \n"
        ranks_of(tmp_path, "o\n 10%\r 20%\r\nend", "")
    said = capfd.readouterr().err
    assert said == "[rank0]: two\n[rank0]:  10%\n[rank0]:  20%\n[rank0]: end\n"
    assert (tmp_path / "rank-1.stderr.log").read_text(encoding="utf-8").startswith("[rank1]")


def test_a_line_without_an_end_is_not_kept_back_for_long(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Output(ranks_of(tmp_path, "loading ...", ""), 2) as output:
        output.pass_on()
        assert capfd.readouterr().err == ""
        for _ in range(600):
            threading.Event().wait(0.1)
            output.pass_on()
            if said := capfd.readouterr().err:
                break
    assert said == "[rank0]: loading ...\n"


def test_a_job_goes_on_when_nobody_reads_any_more(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from mirror.run.output import Output\n"
        "with Output(Path(sys.argv[1]), 2): sys.stdin.read()\n"
        "open(sys.argv[2], 'w').write('done')"
    )
    line = [PYTHON, "-c", code, str(ranks_of(tmp_path, "x\n" * 9, "")), str(tmp_path / "done")]
    pipes = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, **pipes) as running:  # type: ignore[call-overload]
        running.stderr.close()
        running.stdin.close()
        assert running.wait(60) == 0
    assert (tmp_path / "done").read_text(encoding="utf-8") == "done"


LAUNCHER = """\
W1201 05:27:22.656000 13940 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process \
14037 closing signal SIGTERM
E1201 05:27:22.936000 13940 torch/distributed/elastic/multiprocessing/api.py:1002] failed \
(exitcode: {code}) local_rank: {rank} (pid: 14038) of binary: /env/bin/python
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
GONE = (
    "Traceback (most recent call last):\nRuntimeError: [../gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [127.0.0.1]:39310\n"
)


def failed(folder: Path, code: int, rank: int) -> JobError:
    (folder / "launch.log").write_text(LAUNCHER.format(code=code, rank=rank), encoding="utf-8")
    return explain(Ending("train.py", folder, 2, 1))


def test_the_rank_that_failed_is_named_with_its_last_words(tmp_path: Path) -> None:
    raised = "Traceback (most recent call last):\nValueError: b\x1b[2Jad\n"
    error = failed(ranks_of(tmp_path, GONE, raised), 3, 1)
    assert error.exit_code == 3
    assert error.message == "train.py, rank 1 of 2: it ended with exit code 3; its last lines:"
    # Nothing that could clear a screen, and nothing of rank 0, which only lost its peer.
    assert error.problems == (
        "  Traceback (most recent call last):",
        r"  ValueError: b\x1b[2Jad",
    )


def test_the_rank_that_only_missed_another_is_not_blamed(tmp_path: Path) -> None:
    """The one that raised needed longer to end than the other to notice."""
    raised = "Traceback (most recent call last):\nValueError: bad\n"
    error = failed(ranks_of(tmp_path, GONE, raised), 1, 0)
    assert error.message == "train.py, rank 1 of 2: it raised an exception; its last lines:"
    assert error.exit_code == 1
    assert "rank 0: it ended with exit code 1" in error.problems
    error = failed(ranks_of(tmp_path / "both", GONE, ""), 1, 0)
    assert error.message.startswith("train.py, rank 0 of 2: it ended with exit code 1")
    assert "Another rank has ended" in error.problems


def test_a_rank_that_was_killed_has_the_shells_code(tmp_path: Path) -> None:
    error = failed(ranks_of(tmp_path, "", ""), -9, 0)
    assert error.exit_code == 137
    assert "rank 0 of 2: it was killed by signal 9 (SIGKILL)" in error.message
    assert error.problems[0] == "(it said nothing)"
    assert "A process was killed (SIGKILL)" in error.problems


def test_a_launcher_that_fails_itself_is_quoted(tmp_path: Path) -> None:
    (tmp_path / "launch.log").write_text("ValueError: no such flag\n", encoding="utf-8")
    error = explain(Ending("train.py", tmp_path, 2, 2))
    assert error.message == "train.py: its launcher failed: it ended with exit code 2"
    assert error.problems == ("  ValueError: no such flag",)
    assert error.exit_code == 2
