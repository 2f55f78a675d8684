"""What is done under every fault: each scene with how it begins, what it runs, how it must end."""

from __future__ import annotations

import ctypes
import ensurepip
import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from mirror.bundle import writer
from mirror.bundle.reader import Reader
from mirror.bundle.splitting import Volumes, pack_volumes
from mirror.core.artifact import Artifact
from mirror.core.index import Index
from mirror.core.progress import Quiet
from mirror.store.blobs import Blobs
from mirror.store.generations import remove_tree
from tests.faults import invariants
from tests.faults.tracing import Command, Ended, run
from tests.index import make_wheel, serve

TOOL = ("click", "tqdm", "packaging", "segno", "uv")
_MANIFEST = """\
name: faults
version: {version}
files: [{{path: data/, to: ./}}]
models: [{{path: model, name: our/model}}]
"""
_WHEELS = """\
name: wheels
version: 1
wheels: {requirements: [alpha], installer: pip}
"""
_CONFIG = '{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}\n'


#: What says when it was written.
_TIMED = ("root/log/audit.jsonl",)


class RefusedError(AssertionError):
    """A command that prepares a scene did not end as it should."""


class Workshop:
    """A project in two versions, and what was built of it, once for all scenes.

    full: the bundle as it is. old: the same without the tool, which has a thousand files; it ships
    more files than are synced one by one. new: what an increment of it is installed from, the
    first of its volumes; it holds a file shipped in part. wheels: two packages, and a pip to
    install them with.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.project = folder / "project"
        self.cache = folder / "cache"
        self.environment = {
            "MIRROR_CACHE": str(self.cache),
            "UV_DEFAULT_INDEX": url,
            "UV_CACHE_DIR": str(folder / "uv"),
            "XDG_CONFIG_HOME": str(folder / "nobody"),
            "UV_NO_PROGRESS": "1",
        }
        self._write(1)
        self.full = self._build("full.tar.gz")
        self.old, self.old_index = folder / "old.tar.gz", self._slim(self.full, Path("old.tar.gz"))
        self.wheels, self.wheels_index = folder / "wheels.tar.gz", self._environment()
        self._write(2)
        self.increment = self._build("increment.tar.gz", "--since", str(self.full))
        self.new_index = self._slim(self.increment, Path("new.tar.gz"), volumes=200_000)
        self.new = folder / "new.tar.gz.001"
        self.bundles = [*folder.glob("*.tar.gz"), *folder.glob("*.tar.gz.*")]

    def command(
        self,
        *arguments: object,
        watched: Sequence[Path] = (),
        at: Path | None = None,
        **environment: str,
    ) -> Command:
        """A command line of mirror, in the project's folder or another."""
        line = [str(argument) for argument in arguments]
        return Command(line, at or self.project, watched, self.environment | environment)

    def do(self, *arguments: object, at: Path | None = None, **environment: str) -> Ended:
        """Run one that has to end well. Raises RefusedError."""
        ended = run(self.command(*arguments, watched=(), at=at, **environment))
        if ended.code:
            raise RefusedError(
                f"mirror {' '.join(map(str, arguments))}: {ended.code}\n{ended.said}"
            )
        return ended

    def _build(self, name: str, *more: str) -> Path:
        self.do("build", "-o", self.folder / name, *more)
        return self.folder / name

    def _write(self, version: int) -> None:
        data, model = self.project / "data", self.project / "model"
        for folder in (data / "many", model):
            folder.mkdir(parents=True, exist_ok=True)
        (self.project / "mirror.yaml").write_text(_MANIFEST.format(version=version), "utf-8")
        (data / "large").write_bytes(random.Random(version).randbytes(300_000))
        (data / "run.sh").write_text(f"echo {version}\n", encoding="utf-8")
        (data / "run.sh").chmod(0o755)
        (data / "copy.sh").write_text("echo 1\n", encoding="utf-8")
        for number in range(16):
            (data / "many" / str(number)).write_text(f"{number}\n", encoding="utf-8")
        (data / "many" / "0").write_text(f"version {version}\n", encoding="utf-8")
        (model / "config.json").write_text(_CONFIG, encoding="utf-8")
        (model / "model.safetensors").write_bytes(_weights(version))

    def _environment(self) -> Index:
        folder = self.folder / "environment"
        folder.mkdir()
        (folder / "mirror.yaml").write_text(_WHEELS, encoding="utf-8")
        bundle = self.folder / "wheels-full.tar.gz"
        self.do("build", "-o", bundle, at=folder)
        return self._slim(bundle, Path("wheels.tar.gz"), tool="pip")

    def _slim(self, bundle: Path, name: Path, *, volumes: int = 0, tool: str = "") -> Index:
        """The same bundle without the tool, or with one package of it."""
        with Reader.open(bundle) as reader:
            index = reader.index
            blobs = Blobs(self.folder / "slim")
            reader.admit(blobs, Quiet())
        kept = [e for e in index.entries if e.artifact.kind != "tool" or _is(e.artifact, tool)]
        slim = replace(index, entries=tuple(kept))
        target = self.folder / name

        def locate(artifact: Artifact) -> Path:
            return blobs.path(artifact.sha256)

        if volumes:
            pack_volumes(slim, b"", locate, target, Volumes(volumes), Quiet())
        else:
            writer.pack_file(slim, b"", locate, target, Quiet())
        return slim


def _is(artifact: Artifact, name: str) -> bool:
    return bool(name) and artifact.origin.get("name") == name


def _weights(version: int) -> bytes:
    """A model's, of which a third is another in each version."""
    size, header, data = 500_000, {}, b""
    for number, seed in enumerate((10, 20 + version, 30)):
        places = [number * size, (number + 1) * size]
        header[f"w{number}"] = {"dtype": "U8", "shape": [size], "data_offsets": places}
        data += random.Random(seed).randbytes(size)
    spelled = json.dumps(header).encode()
    return len(spelled).to_bytes(8, "little") + spelled + data


@contextmanager
def workshop(folder: Path) -> Iterator[Workshop]:
    """A workshop with a package index of its own, which another process serves."""
    shelf = folder / "shelf"
    shelf.mkdir(parents=True)
    for name in TOOL:
        make_wheel(shelf, name, "99.0")
    make_wheel(shelf, "installer", "1.0")
    for pip in (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"):
        shutil.copy(pip, shelf)  # a real one, which installs
    make_wheel(shelf, "alpha", "1.0", requires=["beta"])
    make_wheel(shelf, "beta", "1.0")
    out, into = os.pipe()
    server = os.fork()
    if not server:  # not a thread: whoever forks has none
        os.close(out)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # it ends with us, however that is
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # of clients that were killed
        with serve(shelf) as url:
            os.write(into, url.encode())
            os.close(into)
            signal.pause()
    os.close(into)
    try:
        with open(out, "rb") as pipe:
            url = pipe.read().decode()
        yield Workshop(folder, url)
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


@dataclass
class Scene:
    """A command, and the folders that it changes.

    begin: makes those folders, at their places. rerun: what is run after a fault; the command, if
    it is not another. end: what the folders hold when nothing was in the way. whole: finds what is
    wrong with them at any time. rival: what is run at the same time. points: how many are walked of
    a scene that takes too long to walk all.
    """

    name: str
    command: Command
    begin: Callable[[], None]
    whole: Callable[[Path], list[str]]
    bundles: Sequence[Path] = ()
    ignored: Sequence[str] = _TIMED
    rerun: Command | None = None
    rival: Command | None = None
    parts: Sequence[str] = ("kills", "errors", "cuts", "order")
    points: int | None = None
    end: dict[str, invariants.Thing] = field(default_factory=dict)
    start: dict[str, invariants.Thing] = field(default_factory=dict)
    _kept: Path | None = None
    _stamps: dict[str, object] = field(default_factory=dict)

    @property
    def places(self) -> Sequence[Path]:
        """The folders that it changes."""
        return self.command.watched

    def prepare(self, shelf: Path) -> None:
        """Make the beginning once, keep it on the shelf, and learn the end. Raises RefusedError."""
        self.clear()
        self.begin()
        self._kept = shelf / self.name
        for number, place in enumerate(self.places):
            if place.exists():
                copy(place, self._kept / str(number))
        self.start = self.now()
        self._stamps = {str(b): invariants.stamp(b) for b in self.bundles}
        ended = run(self.command)
        if ended.code:
            raise RefusedError(f"{self.name}: {ended.code}\n{ended.said}")
        self.end = self.now()

    def restart(self) -> None:
        """Have the folders as they were in the beginning."""
        self.clear()
        assert self._kept is not None, "prepared"
        for number, place in enumerate(self.places):
            if (self._kept / str(number)).exists():
                copy(self._kept / str(number), place)

    def clear(self) -> None:
        """Remove the folders."""
        for place in self.places:
            remove_tree(place)

    def now(self) -> dict[str, invariants.Thing]:
        """What the folders hold."""
        return invariants.things(self.places, self.ignored)

    def problems(self) -> list[str]:
        """What is wrong now, at whatever point the command was ended."""
        found = [line for place in self.places[:1] for line in self.whole(place)]
        changed = [b for b in self.bundles if invariants.stamp(b) != self._stamps[str(b)]]
        return [*found, *(f"{bundle} was changed" for bundle in changed)]

    def differences(self) -> list[str]:
        """How the folders differ from what they are when nothing was in the way."""
        return invariants.differences(self.end, self.now())

    def leftovers(self) -> list[str]:
        """What is there and has no place, neither in the beginning nor in the end."""
        known = self.start.keys() | self.end.keys()
        # The folder itself is a part of a root, which comes and goes.
        return sorted(n for n in self.now() if n not in known and not n.endswith("/store/tmp"))

    def finish(self) -> list[str]:
        """Run it again, and say what is wrong then: it must end as if nothing had happened."""
        ended = run(self.rerun or self.command)
        found = [f"the rerun ended with {ended.code}: {ended.said}"] if ended.code else []
        return [*found, *self.problems(), *self.differences()]


def copy(source: Path, target: Path) -> None:
    """Copy a tree with its links, hard ones too, modes and times."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
