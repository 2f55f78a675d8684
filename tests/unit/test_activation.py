"""What conda packages want done in a shell that uses them: in shells, in mirror run, in verify."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mirror.core.index import Index
from mirror.run import run
from mirror.store import environment
from mirror.store.generations import Root
from mirror.verify import child

SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh") if shutil.which(shell)]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    found = Root(tmp_path / "it's a root")
    found.prepare()
    generation = found.begin()
    (generation.env / "conda-meta").mkdir(parents=True)
    (generation.env / "bin").mkdir()
    found.finish(generation, Index("n", "1", "0.1.0", "0" * 64, None, ()))
    found.commit(generation)
    return found


def script(root: Root, name: str, text: str) -> None:
    folder = root.current().env / "etc" / "conda" / "activate.d"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")


def in_shell(root: Root, shell: str) -> dict[str, str]:
    environment.write_activate(root.current(), root.path)
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody"}
    line = [shell, "-c", '. "$1/current/activate"; env -0', "sh", str(root.path)]
    done = subprocess.run(line, env=bare, capture_output=True, check=True)
    items = done.stdout.decode().rpartition("\n")[2].split("\0")
    return dict(item.split("=", 1) for item in items if item)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_sources_every_script_in_order(root: Root, shell: str) -> None:
    script(root, "b.sh", 'export SECOND="$FIRST after"\n')
    script(root, "a.sh", 'echo hello; export FIRST="$CONDA_PREFIX"\n')
    script(root, "c.fish", "set -gx THIRD no\n")
    seen = in_shell(root, shell)
    env = root.current().env
    assert seen["CONDA_PREFIX"] == str(env)
    assert seen["SECOND"] == f"{env} after"
    assert "THIRD" not in seen


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_stops_at_errors_bears_an_environment_without_scripts(
    root: Root, shell: str
) -> None:
    environment.write_activate(root.current(), root.path)
    line = [shell, "-euc", '. "$1/current/activate"; echo "$CONDA_PREFIX"', "sh", str(root.path)]
    bare = {"PATH": "/usr/bin:/bin", "HOME": "/home/somebody"}
    done = subprocess.run(line, env=bare, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(root.current().env)


def test_mirror_run_and_verify_set_what_the_scripts_set(
    root: Root, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAKEN", "from outside")
    script(
        root,
        "a.sh",
        'echo noise\nexport SAID="$CONDA_PREFIX and $TAKEN"\nlocal_only=1\n'
        'export PATH="$CONDA_PREFIX/nvvm/bin:$PATH"\n',
    )
    script(root, "b.sh", "false\n")
    code = 'env -0 > "$1"'
    assert run(root, gpus=None, command=["sh", "-c", code, "sh", str(tmp_path / "seen")]) == 0
    seen = dict(
        item.split("=", 1)
        for item in (tmp_path / "seen").read_text(encoding="utf-8").split("\0")
        if item
    )
    env = root.current().env
    for variables in (seen, child.variables(root.current())):
        assert variables["SAID"] == f"{env} and from outside"
        assert "local_only" not in variables
        path = variables["PATH"].split(os.pathsep)
        assert f"{env}/nvvm/bin" in path
        assert path.index(f"{env}/bin") < path.index("/usr/bin")


@pytest.mark.parametrize("text", ["exit 1\n", "if then fi\n", "exec true\n"])
def test_a_script_that_ends_the_shell_takes_nothing_else_with_it(root: Root, text: str) -> None:
    script(root, "a.sh", text)
    assert environment.variables(root.current())["CONDA_PREFIX"] == str(root.current().env)


def test_variables_that_packages_want_set(root: Root) -> None:
    folder = root.current().env / "etc" / "conda" / "env_vars.d"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text(json.dumps({"ONE": "1", "bad name": "x", "TWO": "a"}))
    (folder / "b.json").write_text(json.dumps({"TWO": "b's"}))
    (folder / "c.json").write_text("[]")
    (folder / "d.json").write_text("{")
    found = environment.variables(root.current())
    assert (found["ONE"], found["TWO"]) == ("1", "b's")
    assert "bad name" not in found
    assert in_shell(root, "sh")["TWO"] == "b's"
