"""The readers that get bytes from strangers: seeds for each, and what it promises of any input."""

from __future__ import annotations

import atexit
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from mirror.bundle import layout, volumes
from mirror.bundle.reader import Reader
from mirror.core import delta, index, inventory, lock, reading, summary
from mirror.core.artifact import Artifact
from mirror.core.delta import Piece
from mirror.core.index import Entry
from mirror.core.progress import Progress, Quiet
from mirror.core.target import Target
from mirror.ecosystems.wheels import inspection
from mirror.errors import BundleError, TargetError, UsageError
from mirror.trust import signers, sshsig
from mirror.trust.keys import PublicKey, UnknownAlgorithm, WrongSignature
from mirror.trust.sshsig import NAMESPACE, Signature, signed_bytes
from mirror.trust.wire import string
from tests import bundles
from tests.conda_packages import Package
from tests.index import make_wheel

MESSAGE = b'{"an":"index"}\n'
_WHEEL = "demo-1.0-py3-none-any.whl"


@dataclass(frozen=True)
class Surface:
    """A reader. seeds: inputs that it takes. read: returns whether it took an input.

    may: what `read` may raise, of these exact kinds; else it is a finding. most: characters of its
    message; what people write themselves may have a mistake in every line.
    """

    name: str
    seeds: Callable[[], Sequence[bytes]]
    read: Callable[[bytes], bool]
    may: tuple[type[Exception], ...]
    most: int = 10_000


# -- index and bundle ---------------------------------------------------------------------------


def _index(**more: object) -> index.Index:
    made = bundles.index_of(
        bundles.artifact("files/a", b"hello\n"),
        bundles.artifact("files/run.sh", b"", executable=True),
    )
    return replace(made, **more)  # type: ignore[arg-type]


def _indexes() -> list[bytes]:
    new, old = "ab" * 32, "cd" * 32
    changed = Artifact(
        "models", "models/a/b/w", 100, new, origin={"repo": "a/b", "commit": "0" * 40}
    )
    patch = delta.artifact(new, old, [Piece(90, 0), Piece(10)], size=10, sha256="ef" * 32)
    target = Target("3.11", "linux-x86_64", "2.28", "12.8", "570", ("sm_90",), ("torch==2.8.0",))
    entries = (*_index().entries, Entry(changed, shipped=False), Entry(patch))
    full = _index(target=target, verify={"model": "a/b", "lr": 0.1}, base=old, entries=entries)
    return [_index().to_bytes(), full.to_bytes(), _index(entries=()).to_bytes()]


def _read_index(data: bytes) -> bool:
    found = index.parse(data)
    assert found.to_bytes() == data
    assert str(found.target).isprintable()
    delta.deltas(found)
    return True


class _Memory:
    """A bundle's bytes at hand."""

    def __init__(self, data: bytes) -> None:
        self.name = "the bundle"
        self.size: int | None = len(data)
        self.digest: str | None = None
        self._data, self._at = data, 0

    def read_into(self, views: Sequence[memoryview]) -> int:
        done = 0
        for view in views:
            part = self._data[self._at : self._at + len(view)]
            view[: len(part)] = part
            self._at, done = self._at + len(part), done + len(part)
        return done

    def suspects(self, progress: Progress) -> list[str]:
        return []

    def close(self) -> None:
        pass


def _bundles() -> list[bytes]:
    files = {
        "files/a": b"hello\n",
        "files/empty": b"",
        "files/" + "x" * 120: b"long",
        "m": bytes(5000),
    }
    with tempfile.TemporaryDirectory() as folder:
        made = bundles.sources(Path(folder, "in"), files)
        more = replace(made, signature=_signatures()[0])
        return [m.pack(Path(folder, "b.tar.gz")) for m in (made, more)]


def _read_bundle(data: bytes) -> bool:
    """What is taken is what a writer makes of the same index, signature and files."""
    found: dict[str, bytearray] = {}

    def sink(artifact: Artifact, at: int, part: memoryview, last: bool) -> None:
        found.setdefault(artifact.path, bytearray()).extend(part)

    with Reader.open(_Memory(data)) as reader:
        reader.copy(sink, Quiet())
    tar = layout.head(reader.index_bytes, reader.signature)
    for piece in layout.payload(reader.index.shipped):
        tar += piece if isinstance(piece, bytes) else bytes(found.get(piece.path, b""))
    assert bundles.framed(tar) == data
    return True


def _lists() -> list[bytes]:
    parts = [volumes.Part(f"b.tar.gz.{n:03}", 10, "ab" * 32) for n in (1, 2, 3)]
    more = (volumes.Part("b.tar.gz.par2", 5, "cd" * 32),)
    return [
        volumes.VolumeList("0" * 64, 10 * count, tuple(parts[:count]), extra).to_bytes()
        for count, extra in ((1, ()), (3, more))
    ]


def _read_list(data: bytes) -> bool:
    with _file(data) as path:
        assert volumes.read_list(path).to_bytes() == data
    return True


# -- signatures and keys ------------------------------------------------------------------------

_PRIVATE = ed25519.Ed25519PrivateKey.from_private_bytes(b"k" * 32)
_RAW = _PRIVATE.public_key().public_bytes(
    serialization.Encoding.Raw, serialization.PublicFormat.Raw
)
_KEY = PublicKey.from_blob(string(b"ssh-ed25519") + string(_RAW), "alice")


def _signatures() -> list[bytes]:
    value = string(b"ssh-ed25519") + string(_PRIVATE.sign(signed_bytes(MESSAGE)))
    one = Signature(_KEY, NAMESPACE, "sha512", value).armoured
    return [one, one + one]


_RIGHT = _PRIVATE.sign(signed_bytes(MESSAGE))


def _read_signature(data: bytes) -> bool:
    """One that counts is of the key that signed, and has its very bytes in it."""
    found = sshsig.read(data)
    for one in found:
        if isinstance(one, Signature):
            assert one.namespace != NAMESPACE or one.key.label.isprintable()
            try:
                one.require(MESSAGE)
            except (WrongSignature, UnknownAlgorithm):
                continue
            assert one.key == _KEY
            assert one.value.endswith(_RIGHT)
    return bool(found)


def _read_key(data: bytes) -> bool:
    key = PublicKey.from_blob(data)
    assert key.label.isprintable()
    return True


def _read_key_line(data: bytes) -> bool:
    key = PublicKey.from_line(data.decode("utf-8", "surrogateescape"))
    assert PublicKey.from_line(key.line) == key
    return True


def _signers() -> list[bytes]:
    return [
        f'alice namespaces="mirror-bundle",valid-before="20300101" {_KEY.line}\n'.encode(),
        f"# mirror: threshold 2\n\nbob {_KEY.line}\n# a comment\n".encode(),
    ]


def _read_signers(data: bytes) -> bool:
    signers.parse(data, "keys")
    return True


def _read_revoked(data: bytes) -> bool:
    signers.parse_revoked(data, "keys")
    return True


# -- what comes back from a server, and what people write ---------------------------------------


def _inventories() -> list[bytes]:
    gpu = {"name": "NVIDIA H200", "memory": 1, "capability": "9.0", "uuid": "GPU-1"}
    conda = {"name": "a", "version": "1", "build": "0", "subdir": "noarch", "python": True}
    document = {"format": 1, "python": "3.11", "platform": "linux-x86_64", "glibc": "2.28"}
    full = {**document, "packages": ["a==1"], "gpus": [gpu], "conda": [conda], "held": ["ab" * 32]}
    full |= {
        "driver": "570.1",
        "cuda": "12.8",
        "bundle": "0" * 64,
        "bundles": ["0" * 64],
        "free": 1,
    }
    return [json.dumps({**document, "packages": []}).encode(), json.dumps(full).encode()]


def _summaries() -> list[bytes]:
    return [" ".join(summary.words(data)).encode() for data in _inventories()]


def _read_inventory(data: bytes) -> bool:
    if not inventory.is_one(data):
        return False
    inventory.parse(data, "server.json")
    return True


def _locks() -> list[bytes]:
    entries = [entry.artifact for entry in _index().entries]
    return [lock.Lock("0" * 64, Target("3.11", "linux-x86_64"), tuple(entries)).to_bytes()]


def _read_lock(data: bytes) -> bool:
    lock.parse(data, "lock.toml")
    return True


def _manifests() -> list[bytes]:
    folder = Path(__file__).resolve().parents[2] / "manifests"
    return [path.read_bytes() for path in sorted(folder.glob("*.yaml"))]


def _read_manifest(data: bytes) -> bool:
    reading.parse(data, "mirror.yaml")
    return True


# -- archives -----------------------------------------------------------------------------------


def _wheels() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        text = {"demo-1.0.dist-info/entry_points.txt": b"[console_scripts]\nx = demo:main\n"}
        made = make_wheel(Path(folder), "demo", "1.0", requires=["a>1"], files=text)
        return [made.read_bytes()]


def _read_wheel(data: bytes) -> bool:
    with _file(data) as path:
        found = inspection.check(path, _WHEEL)
        assert all(problem.isprintable() for problem in found.problems), found.problems
        if not found.problems:
            inspection.metadata(path)
    return not found.problems


def _packages(modern: bool) -> list[bytes]:
    made = Package("p", files={"bin/p": b"x"}, links={"lib/p": "../bin/p"}, modern=modern)
    return [made.to_bytes()]


def _read_package(end: str) -> Callable[[bytes], bool]:
    def read(data: bytes) -> bool:
        from mirror.ecosystems.conda import archives

        with _file(data, f"p-1.0-0.{end}") as path:
            archives.read(path)
        return True

    return read


@contextmanager
def _file(data: bytes, name: str = "file") -> Iterator[Path]:
    path = Path(_folder().name, name)
    path.write_bytes(data)
    yield path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """One for all inputs; it goes when this process ends."""
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return made


_LINES = 10**6
TARGETS = [
    Surface("index", _indexes, _read_index, (BundleError, TargetError)),
    Surface("bundle", _bundles, _read_bundle, (BundleError, TargetError)),
    Surface("volumes", _lists, _read_list, (BundleError, TargetError)),
    Surface("signature", _signatures, _read_signature, (WrongSignature,)),
    Surface("key", lambda: [_KEY.blob], _read_key, (ValueError, UnknownAlgorithm, WrongSignature)),
    Surface(
        "key-line",
        lambda: [_KEY.line.encode()],
        _read_key_line,
        (ValueError, UnknownAlgorithm, WrongSignature),
    ),
    Surface("signers", _signers, _read_signers, (signers.Mistakes,), _LINES),
    Surface("revoked", lambda: [_KEY.line.encode()], _read_revoked, (signers.Mistakes,), _LINES),
    Surface("inventory", _inventories, _read_inventory, (UsageError,)),
    Surface("summary", _summaries, _read_inventory, (UsageError,)),
    Surface("lock", _locks, _read_lock, (UsageError,), _LINES),
    Surface("manifest", _manifests, _read_manifest, (UsageError,), _LINES),
    Surface("wheel", _wheels, _read_wheel, ()),
    Surface("conda", lambda: _packages(True), _read_package("conda"), (ValueError,)),
    Surface("tar.bz2", lambda: _packages(False), _read_package("tar.bz2"), (ValueError,)),
]


def small_blocks() -> dict[str, int]:
    """Blocks, chunks and gzip members of a few bytes: every seam of the framing in little."""
    return {"STORED": 1024, "CHUNK": 2048, "MEMBER": 4096}


def expected(error: Exception, target: Surface) -> bool:
    """Whether it is one that the reader may raise, and fit to be shown."""
    if type(error) not in target.may:
        return False
    lines = str(error).split("\n")
    return len(str(error)) < target.most and all(line.isprintable() for line in lines)
