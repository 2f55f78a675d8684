"""The audit log of a root: what it says, when it says it, and what it refuses to leave unsaid."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from mirror import gc, history, install
from mirror.core.index import canonical
from mirror.core.progress import Quiet
from mirror.errors import MachineError
from mirror.planning import Wish
from mirror.store import audit
from mirror.store.generation import SIGNATURES
from mirror.store.generations import Root
from mirror.trust import store
from tests import bundles, signing

CHECKOUT = Path(__file__).resolve().parents[2]
#: Installs a bundle and is killed as soon as a function of the root has returned.
KILLED = """
import os, signal, sys
from pathlib import Path
from mirror import install
from mirror.core.progress import Quiet
from mirror.planning import Wish
from mirror.store.generations import Root
bundle, root, name = sys.argv[1:]
real = getattr(Root, name)
def killed(*arguments, **more):
    real(*arguments, **more)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(Root, name, killed)
install.install([bundle], Root(Path(root)), Wish(), Quiet())
"""


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("SUDO_USER", raising=False)
    monkeypatch.setattr(store, "SYSTEM", tmp_path / "etc")


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path / "root")


def a_bundle(folder: Path, text: str, *, signer: signing.Key | None = None) -> Path:
    made = bundles.sources(folder / f"in-{text}", {"files/a": text.encode()})
    made = replace(made, index=replace(made.index, version=text))
    if signer:
        made = replace(made, signature=signer.sign(made.index.to_bytes()))
    made.pack(folder / f"{text}.tar.gz")
    return folder / f"{text}.tar.gz"


def put(root: Root, bundle: Path, **more: Any) -> install.Installed:
    return install.install([str(bundle)], root, Wish(), Quiet(), **more)


def events(root: Root) -> list[dict[str, Any]]:
    lines = (root.logs / audit.NAME).read_bytes().splitlines()
    assert all(canonical(json.loads(line)) == line for line in lines)
    return [json.loads(line) for line in lines]


def said(root: Root) -> list[tuple[Any, ...]]:
    keys = ("action", "generation", "state")
    return [tuple(event.get(key) for key in keys) for event in events(root)]


def test_who_installed_what_and_when(
    tmp_path: Path, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "ev\x1b[31mil")
    before = datetime.now(timezone.utc).replace(microsecond=0)
    done = put(root, a_bundle(tmp_path, "1"))
    begun, event = events(root)
    assert event.pop("seal", None) != ""
    assert event == {
        "action": "install",
        "digest": done.index.digest,
        "generation": 1,
        "name": "demo",
        "signatures": "unsigned",
        "state": "done",
        "sudo_user": "ev\\x1b[31mil",
        "time": event["time"],
        "tool": event["tool"],
        "uid": os.getuid(),
        "user": event["user"],
        "version": "1",
    }
    assert begun == {**event, "state": "begun", "time": begun["time"]}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", event["time"])
    assert before <= datetime.fromisoformat(event["time"].replace("Z", "+00:00"))
    assert (root.logs / audit.NAME).stat().st_mode & 0o777 == 0o644
    assert not put(root, tmp_path / "1.tar.gz").changed
    assert len(events(root)) == 2, "nothing was changed"


def test_every_change_is_said(tmp_path: Path, root: Root) -> None:
    put(root, a_bundle(tmp_path, "1"))
    put(root, a_bundle(tmp_path, "2"))
    gc.pin(root, 1, wanted=True)
    install.rollback(root, None)
    gc.pin(root, 1, wanted=False)
    gc.collect(root, 0, Quiet(), rehearse=True)
    before = said(root)
    assert before[4:] == [
        ("pin", 1, "begun"),
        ("pin", 1, "done"),
        ("rollback", 1, "begun"),
        ("rollback", 1, "done"),
        ("unpin", 1, "begun"),
        ("unpin", 1, "done"),
    ]
    assert events(root)[7]["from"] == 2
    gc.collect(root, 0, Quiet())
    assert said(root)[len(before) :] == [
        ("remove", 2, "begun"),
        ("remove", 2, "done"),
        ("gc", None, "begun"),
        ("gc", None, "done"),
    ]
    assert events(root)[-1]["blobs"] == 1
    assert events(root)[-1]["bytes"] > 0
    assert events(root)[-3]["version"] == "2"


def test_who_signed_is_said_and_can_be_checked_again(tmp_path: Path, root: Root) -> None:
    alice, bob = (signing.make(tmp_path / name) for name in ("alice", "bob"))
    trusted = tmp_path / "trusted"
    line = alice.half.read_text(encoding="utf-8")
    trusted.write_text(f"alice {line}", encoding="utf-8")
    bundle = a_bundle(tmp_path, "1", signer=alice)
    made = bundles.sources(tmp_path / "in-1", {"files/a": b"1"})
    data = replace(made.index, version="1").to_bytes()
    Path(f"{bundle}.sig").write_bytes(bob.sign(data))
    done = put(root, bundle, trust=trusted)
    [counts, other] = events(root)[-1]["signatures"]
    assert counts == {"key": alice.public.fingerprint, "signer": "alice", "verdict": "counts"}
    assert (other["key"], other["signer"]) == (bob.public.fingerprint, None)
    assert "nobody here trusts its key" in other["verdict"]
    kept = done.generation.path / SIGNATURES
    assert kept.stat().st_mode & 0o777 == 0o444
    assert kept.read_bytes().count(b"BEGIN SSH SIGNATURE") == 2
    index = (done.generation.path / "index.json").read_bytes()
    assert signing.openssh_agrees(tmp_path, alice.public, index, kept.read_bytes())
    text = "\n".join(line for change in history.changes(root) for line in change.lines())
    assert f"signed by alice, {alice.public.fingerprint}: counts" in text
    assert "signed by nobody who is trusted" in text
    assert not (put(root, a_bundle(tmp_path, "2")).generation.path / SIGNATURES).exists()


def no_folder(log: Path) -> None:
    log.parent.rmdir()
    log.parent.write_bytes(b"")


def a_link(log: Path) -> None:
    log.symlink_to(log.parent.parent / "elsewhere")


def a_linked_folder(log: Path) -> None:
    (log.parent.parent.parent / "elsewhere").mkdir()
    log.parent.rmdir()
    log.parent.symlink_to(log.parent.parent.parent / "elsewhere")


WAYS = [no_folder, a_link, a_linked_folder, Path.mkdir, os.mkfifo]


@pytest.mark.parametrize("spoil", WAYS, ids=lambda way: getattr(way, "__name__", ""))
def test_without_a_log_nothing_is_changed(
    tmp_path: Path, root: Root, spoil: Callable[[Path], object]
) -> None:
    put(root, a_bundle(tmp_path, "1"))
    put(root, a_bundle(tmp_path, "2"))
    log = root.logs / audit.NAME
    log.unlink()
    spoil(log)
    before = everything(root.path)
    for change in (
        lambda: gc.pin(root, 1, wanted=True),
        lambda: install.rollback(root, None),
        lambda: gc.collect(root, 0, Quiet()),
    ):
        with pytest.raises(MachineError, match=r"nothing was changed|not safe to write") as caught:
            change()
        assert caught.value.exit_code == 8
        assert caught.value.hint
    with pytest.raises(MachineError):
        put(root, a_bundle(tmp_path, "3"))
    assert everything(root.path) == before
    assert not (tmp_path / "elsewhere").is_file()


def everything(folder: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_mode) for path in folder.rglob("*"))


@pytest.mark.parametrize(("name", "state"), [("finish", "undone"), ("commit", "done")])
def test_a_kill_is_told_by_whoever_comes_next(
    tmp_path: Path, root: Root, name: str, state: str
) -> None:
    put(root, a_bundle(tmp_path, "1"))
    arguments = [str(a_bundle(tmp_path, "2")), str(root.path), name]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], env=environment, check=False, timeout=120
    )
    assert done.returncode == -signal.SIGKILL
    assert said(root)[2:] == [("install", 2, "begun")]
    [_, change] = history.changes(root)
    assert "NOT FINISHED YET" in change.lines()[0]
    gc.pin(root, 1, wanted=True)
    assert said(root)[2:] == [
        ("install", 2, "begun"),
        ("install", 2, state),
        ("pin", 1, "begun"),
        ("pin", 1, "done"),
    ]
    assert events(root)[3]["settled_by"]["uid"] == os.getuid()
    assert root.current_number() == (2 if state == "done" else 1)
    gc.pin(root, 1, wanted=False)
    assert len(events(root)) == 8, "it is said once"


def test_what_failed_is_told(tmp_path: Path, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    put(root, a_bundle(tmp_path, "1"))

    def refuse(self: Root, generation: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Root, "commit", refuse)
    with pytest.raises(OSError, match="No space"):
        put(root, a_bundle(tmp_path, "2"))
    assert said(root)[2:] == [("install", 2, "begun"), ("install", 2, "undone")]
    assert "NOT DONE" in history.changes(root)[-1].lines()[0]


def test_a_full_disk_stops_what_needs_room_and_not_what_makes_it(
    tmp_path: Path, root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(root, a_bundle(tmp_path, "1"))
    put(root, a_bundle(tmp_path, "2"))
    gone = root.blobs.path(root.generations()[0].index().artifacts[0].sha256)
    before, real = events(root), os.write

    def full(file: int, data: bytes) -> int:
        """A disk that takes part of a line, and no more until a blob has gone."""
        if not gone.exists() or not os.readlink(f"/proc/self/fd/{file}").endswith(audit.NAME):
            return real(file, data)
        if data.startswith(b"{") and (root.logs / audit.NAME).read_bytes().endswith(b"\n"):
            return real(file, data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(MachineError, match="No space left on device; nothing was changed"):
        gc.pin(root, 1, wanted=True)
    assert not root.generations()[0].pinned
    gc.collect(root, 0, Quiet())
    assert [g.number for g in root.generations()] == [2]
    states = [(c.event["action"], c.event["state"]) for c in history.changes(root) if c.event]
    assert states[len(before) // 2 :] == [("remove", "done"), ("gc", "done")]
    assert [c.line for c in history.changes(root) if not c.event] == [5], "what was cut"


def test_damaged_lines_are_named_and_the_rest_is_told(tmp_path: Path, root: Root) -> None:
    put(root, a_bundle(tmp_path, "1"))
    gc.pin(root, 1, wanted=True)
    log = root.logs / audit.NAME
    lines = log.read_bytes().splitlines(keepends=True)
    wrong = [
        b"\x1b[2J\n",
        b"{}\n",
        b'{"action":1,"state":"done","time":"x"}\n',
        lines[0].replace(b",", b", "),
        b"[" * 100_000 + b"\n",
    ]
    log.write_bytes(b"".join([*lines, *wrong, lines[3][:40]]))
    found = history.changes(root)
    assert [change.line for change in found if change.event is None] == [5, 6, 7, 8, 9, 10]
    assert [change.line for change in found if change.event] == [2, 4]
    assert all(line.isprintable() for change in found for line in change.lines())
    assert found[-1].to_json() == {"line": 10, "damaged": True}
    gc.pin(root, 1, wanted=False)  # what was cut stays a line of its own
    assert [c.event["action"] for c in history.changes(root) if c.event][-1] == "unpin"


def test_names_in_the_log_cannot_move_a_cursor(root: Root) -> None:
    root.prepare()
    with root.locked(), audit.opened(root) as log:
        about = {"name": "a\x1b[31m", "version": "\u202e1", "over": "/x\n/y", "generation": "\r"}
        with log.event("install", about):
            pass
    [change] = history.changes(root)
    assert all(line.isprintable() for line in change.lines())


def test_a_root_without_a_log_has_no_history(root: Root) -> None:
    assert history.changes(root) == []
