"""A bundle from a stranger, looked at: what it may cost is bounded, and it changes nothing.

Real processes under limits of the system. docs/format.md states the bounds.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mirror.bundle import layout
from mirror.core import strict_json
from mirror.core.index import MAX_INDEX_BYTES
from tests import bundles
from tests.hostile import making
from tests.hostile.making import described, index, mirror, repeated, spliced
from tests.hostile.shop import FILES, state

_MIB = 2**20
#: Of one long value in it; the rest is around that.
_FULL = MAX_INDEX_BYTES - 4096
#: What is stated in docs/format.md.
_PEAK = 3 * 2**30
_PEAK_OF_A_REFUSAL = 900 * _MIB

#: An index of 256 MiB each, and what it is refused for.
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "deep": (lambda: b"[" * _FULL, "lists and tables"),
    "deep-tables": (lambda: repeated(b'{"a":', _FULL), "lists and tables"),
    "tables": (lambda: spliced(b'{"a":[%s]}' % repeated(b'{"a":1},', _FULL)), "lists and tables"),
    "brackets-in-texts": (lambda: spliced(b'{"a":"%s"}' % (b"[" * _FULL)), "lists and tables"),
    "numbers": (lambda: spliced(b'{"a":[%s]}' % repeated(b"1,", _FULL)), "commas"),
    "texts": (lambda: spliced(b'{"a":[%s]}' % repeated(b'"a",', _FULL)), "commas"),
    "keys": (
        lambda: spliced(b"{%s}" % b",".join(b'"%x":0' % n for n in range(12_100_000))),
        "commas",
    ),
    "one-number": (lambda: spliced(b'{"a":%s}' % (b"1" * _FULL)), "digits"),
    "backslashes": (lambda: spliced(b'{"a":"%s' % (b"\\" * _FULL)), "is not JSON"),
    "quotes": (lambda: b'"' * _FULL, "is not JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_index_of_256_mib_is_refused_at_little_cost(name: str, tmp_path: Path) -> None:
    make, says = REFUSED[name]
    bundle = making.write(tmp_path / "b.tar.gz", make())
    done = mirror(tmp_path, "inspect", "--deep", bundle, memory=2 * 2**30, seconds=60)
    assert done.code == 5, done.err
    assert says in done.err
    assert done.peak < _PEAK_OF_A_REFUSAL
    assert len(done.out) + len(done.err) < 2000


def test_one_text_of_256_mib_is_read_and_not_shown(tmp_path: Path) -> None:
    bundle = making.write(tmp_path / "b.tar.gz", spliced(b'{"a":"%s"}' % (b"a" * _FULL)))
    done = mirror(tmp_path, "inspect", bundle)
    assert done.code == 0, done.err
    assert done.peak < _PEAK
    assert len(done.out) < 2000


def test_the_most_that_an_index_may_hold_needs_what_is_stated(tmp_path: Path) -> None:
    """As many tables and texts as are read, in as few bytes, and one text that fills it up."""
    tables = repeated(b'{"a":1},', 8 * (strict_json.MAX_TABLES - 10))
    texts = b",".join(b'"%07x"' % n for n in range(strict_json.MAX_COMMAS - 3_000_020))
    front = spliced(b'{"a":[%s,%s],"b":"' % (tables, texts))
    rest = b"a" * (_FULL - len(front))
    made = spliced(b'{"a":[%s,%s],"b":"%s"}' % (tables, texts, rest))
    bundle = making.write(tmp_path / "b.tar.gz", made)
    done = mirror(tmp_path, "inspect", bundle, memory=4 * 2**30, seconds=300)
    assert done.code == 0, done.err
    assert done.peak < _PEAK


def test_a_million_files_are_listed_into_a_pipe_that_is_closed(tmp_path: Path) -> None:
    one = json.dumps(described("%07d", held=True), separators=(",", ":"), sort_keys=True)
    listed = ",".join(one % n for n in range(1_000_000)).encode()
    bundle = making.write(tmp_path / "b.tar.gz", spliced(b"{}", listed))
    done = mirror(tmp_path, "inspect", "--files", bundle, takes=10_000, seconds=300)
    assert done.code == 0, done.err
    assert len(done.out) == 10_000
    assert done.err == ""
    assert done.peak < _PEAK


def test_where_memory_is_short_that_is_said(tmp_path: Path) -> None:
    texts = b",".join(b'"%09x"' % n for n in range(5_000_000))
    bundle = making.write(tmp_path / "b.tar.gz", spliced(b'{"a":[%s]}' % texts))
    done = mirror(tmp_path, "inspect", bundle, memory=400 * _MIB)
    assert done.code == 8
    assert done.err.startswith("error: there is not enough memory\n")


# -- output -------------------------------------------------------------------------------------

ODD = ["files/\u202etxt.exe", "files/a\u2028b", "files/\U0001f600", "files/'$(x)&amp;", "a" * 255]


def test_names_are_shown_escaped_and_in_json_as_they_are(tmp_path: Path) -> None:
    origin = {"name": "\x1b[2J\ud800\x00", "version": "\u202e1", "license": "x" * 10_000}
    listed = [described(path, held=True, origin=origin) for path in sorted(ODD)]
    bundle = making.write(tmp_path / "b.tar.gz", index(artifacts=listed))
    done = mirror(tmp_path, "inspect", "--files", bundle)
    assert done.code == 0, done.err
    assert all(line.isprintable() for line in done.out.decode().splitlines())
    assert "files/\\u202etxt.exe" in done.out.decode()
    done = mirror(tmp_path, "inspect", "--json", "--deep", bundle)
    assert done.out.isascii()
    assert all(line.isprintable() for line in done.out.decode().splitlines())
    found: Any = json.loads(done.out)
    assert [artifact["path"] for artifact in found["artifacts"]] == sorted(ODD)
    assert found["artifacts"][0]["name"] == origin["name"]


def test_a_refusal_is_valid_json_too(tmp_path: Path) -> None:
    listed = [described(f"files/\x1b[2J{n}\n") for n in range(1000)]
    bundle = making.write(tmp_path / "b.tar.gz", index(artifacts=listed))
    done = mirror(tmp_path, "inspect", "--json", bundle)
    assert done.code == 5
    error: Any = json.loads(done.out)["error"]
    assert len(error["problems"]) == 20
    assert all(problem.isprintable() for problem in error["problems"])


# -- without an end -----------------------------------------------------------------------------


def head_that_promises(size: int) -> bytes:
    """A right head, as of a bundle with one file of this size."""
    artifact = bundles.artifact("files/a", b"")
    made = index(artifacts=[described("files/a", size=size, sha256=artifact.sha256)])
    head = layout.head(made, b"") + layout.member_header("files/a", size, 0o644)
    [chunk] = layout.chunks(0, len(head))
    [front] = chunk.frame(len(head) + size + layout.padding(size) + len(layout.END))
    return front + head


@pytest.mark.parametrize("front", [b"", head_that_promises(2**53)])
def test_a_stream_without_end_is_refused_at_its_first_wrong_byte(
    front: bytes, tmp_path: Path
) -> None:
    (tmp_path / "front").write_bytes(front)
    with subprocess.Popen(
        ["cat", tmp_path / "front", "/dev/zero"], stdout=subprocess.PIPE
    ) as endless:
        done = inspected(endless.stdout)
        endless.kill()
    assert done.returncode == 5, done.stderr
    assert b"damaged" in done.stderr or b"no gzip file" in done.stderr


def inspected(stream: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "mirror", "inspect", "--deep", "-"],
        stdin=stream,
        capture_output=True,
        cwd=making.CHECKOUT,
        timeout=60,
        check=False,
    )


def test_a_device_without_end_is_no_bundle(tmp_path: Path) -> None:
    assert mirror(tmp_path, "inspect", "/dev/zero", seconds=20).code == 5
    assert mirror(tmp_path, "install", "/dev/zero", "--root", tmp_path / "root").code == 5


# -- nothing is written -------------------------------------------------------------------------

_CHANGES = (
    "openat,open,creat,mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,rmdir,link,linkat,"
    "symlink,symlinkat,chmod,fchmod,fchmodat,chown,fchown,fchownat,lchown,truncate,ftruncate,"
    "utimensat,mknod,mknodat,setxattr,fsetxattr"
)
_READS = re.compile(r"open(at)?\(.*O_RDONLY(?!.*O_(CREAT|TRUNC))")


@pytest.mark.parametrize("sound", [True, False])
@pytest.mark.parametrize(
    "arguments", [("inspect",), ("inspect", "--deep", "--files"), ("install", "--dry-run")]
)
def test_looking_opens_nothing_for_writing_and_changes_nothing(
    tmp_path: Path, arguments: tuple[str, ...], sound: bool
) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    bundle = tmp_path / "bundle" / "b.tar.gz"
    bundle.parent.mkdir()
    data = bytearray(bundles.sources(tmp_path / "in", FILES).pack(bundle))
    if not sound:
        data[-100_000] ^= 1
        bundle.write_bytes(data)
    (tmp_path / "home").mkdir()
    before = state(tmp_path, tmp_path / "trace")
    more = ["--root", tmp_path / "root"] if arguments[0] == "install" else []
    trace = tmp_path / "trace" / "calls"
    trace.parent.mkdir()
    wrapper = ["strace", "-f", "-qq", "-o", str(trace), "-e", f"trace={_CHANGES}"]
    done = mirror(tmp_path, *arguments, bundle, *more, wrapper=wrapper)
    damaged = not sound and "--deep" in arguments
    assert done.code == (5 if damaged else 0), done.err
    calls = [line for line in trace.read_text(encoding="utf-8").splitlines() if "(" in line]
    assert len(calls) > 50
    assert [call for call in calls if not _harmless(call)] == []
    (tmp_path / "stderr").unlink()
    after = state(tmp_path, tmp_path / "trace")
    assert {name: at for name, at in after.items() if name != "trace"} == before


def _harmless(call: str) -> bool:
    return bool(_READS.search(call)) or '"/dev/null"' in call or "resumed>" in call
