"""Link scripts: run where the bundle allows it, as conda runs them, and named where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.core.artifact import Json
from mirror.ecosystems.conda.linking.scripts import in_order
from mirror.errors import MachineError
from tests.conda_packages import Package, put, run


def scripted(name: str, *depends: str, post: str = "", pre: str = "") -> Package:
    scripts = {
        f"bin/.{name}-{kind}.sh": text for kind, text in (("pre-link", pre), ("post-link", post))
    }
    found = {path: text.encode() for path, text in scripts.items() if text}
    return Package(name, depends=depends, files=found)


def test_scripts_are_named_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    touch = f"touch {mark}\n"
    files = {"bin/.both-pre-unlink.sh": b"", "bin/.another-post-link.sh": b""}
    both = scripted("both", pre=touch, post=touch)
    told = run(
        put(
            tmp_path, Package("p", files={**both.files, **files}), both, scripted("one", post=touch)
        )
    )
    end = "not run; conda.link-scripts in the manifest names the packages whose scripts are"
    assert told.warnings == [
        f"both: its pre-link and post-link scripts were {end}",
        f"one: its post-link script was {end}",
    ], "a script is its package's by its name"
    assert not mark.exists()


def test_scripts_that_may_run_know_package_and_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("CONDA_PREFIX", "/nowhere")
    post = (
        'echo "$PKG_NAME $PKG_VERSION $PKG_BUILDNUM $ACTIVATED" > "$PREFIX/said"\n'
        'echo "$CONDA_PREFIX ${PYTHONPATH-none} $(pwd)" >> "$PREFIX/said"\n'
        'tool >> "$PREFIX/said"\n'
        "echo 'restart it' >> \"$PREFIX/.messages.txt\"\n"
        "return 0\nexit 1\n"
    )
    files = {
        "bin/tool": b"#!/bin/sh\necho tool ran\n",
        "etc/conda/activate.d/p.sh": b"ACTIVATED=yes\n",
    }
    package = Package("p", "1.5", build="7", files={"bin/.p-post-link.sh": post.encode(), **files})
    there = put(tmp_path, package, scripts=["p"])
    told = run(there)
    env = there.generation.env
    assert (env / "said").read_text(encoding="utf-8").splitlines() == [
        "p 1.5 0 yes",
        f"{env} none {env}/bin",
        "tool ran",
    ]
    assert told.steps == [
        "p: running its post-link script, as the manifest allows",
        "p says: restart it",
    ]
    assert not (env / ".messages.txt").exists()
    assert not told.warnings


def test_scripts_run_in_the_order_of_dependency(tmp_path: Path) -> None:
    say = 'echo $PKG_NAME >> "$PREFIX/order"\n'
    first = scripted("z", post=say)
    second = scripted("m", "z >=1", post=say)
    third = scripted("a", "m", "z", post=say)
    there = put(tmp_path, third, second, first, scripts=["a", "m", "z"])
    run(there)
    assert (there.generation.env / "order").read_text(encoding="utf-8").split() == ["z", "m", "a"]


def test_a_pre_link_script_runs_before_anything_is_linked(tmp_path: Path) -> None:
    pre = 'ls "$SOURCE_DIR/share" > "$PREFIX/before"; ls -A "$PREFIX" >> "$PREFIX/before"\n'
    package = Package("p", files={"bin/.p-pre-link.sh": pre.encode(), "share/x": b""})
    there = put(tmp_path, package, scripts=["p"])
    run(there)
    before = (there.generation.env / "before").read_text(encoding="utf-8").split()
    assert before == ["x", "before"]
    assert (there.generation.env / "share/x").is_file()


@pytest.mark.parametrize(
    ("script", "how"),
    [
        ("echo one; echo two >&2; exit 3\n", "failed: it ended with exit code 3"),
        ("echo one; echo two; return 4\n", "failed: it ended with exit code 4"),
        ("echo one; echo two; kill -9 $$\n", "was killed by SIGKILL"),
    ],
)
def test_a_script_that_fails_is_named_with_its_last_words(
    tmp_path: Path, script: str, how: str
) -> None:
    there = put(tmp_path, scripted("p", post=script), scripts=["p"])
    with pytest.raises(MachineError) as caught:
        run(there)
    assert caught.value.message == f"p: its post-link script {how}"
    assert caught.value.problems == (".p-post-link.sh: one", ".p-post-link.sh: two")
    log = tmp_path / "root" / "log" / "link-scripts-000001.log"
    assert str(log) in str(caught.value.hint)
    assert log.read_text(encoding="utf-8").splitlines()[1:] == ["one", "two"]


def test_a_script_that_waits_for_an_answer_gets_none(tmp_path: Path) -> None:
    there = put(tmp_path, scripted("p", post="read answer || exit 5\n"), scripts=["p"])
    with pytest.raises(MachineError, match="exit code 5"):
        run(there)


def test_only_the_packages_that_are_named_run_theirs(tmp_path: Path) -> None:
    say = 'echo $PKG_NAME >> "$PREFIX/order"\n'
    there = put(tmp_path, scripted("p", post=say), scripted("q", post=say), scripts=["q"])
    (warning,) = run(there).warnings
    assert warning.startswith("p: its post-link script was not run")
    assert (there.generation.env / "order").read_text(encoding="utf-8").split() == ["q"]


def test_the_order_bears_rings_and_strangers() -> None:
    def known(name: str, *depends: str) -> dict[str, Json]:
        return {"name": name, "depends": list(depends)}

    records = [known("python", "pip", "__glibc >=2"), known("pip", "python >=3"), known("a", "pip")]
    assert [found["name"] for found in in_order(records)] == ["python", "pip", "a"]
