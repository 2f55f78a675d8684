"""How fast mirror is, side by side with the programs that people would use instead.

    python -m tests.bench.run [--size 1000] [--rounds 5] [--folder DIR]

Every row is a function that does one piece of work in an empty folder; COMPARED says which rows are
set against each other, and the aim of each. The rows take turns, round after round, so that
whatever else the machine does falls on all of them. A row's figure is the median of its rounds;
the ratio of the fastest rounds is printed too, which a busy machine disturbs less.
About four times `--size` must be free in the folder; all of it is removed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirror.bundle import writer
from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.store.blobs import Blobs, hash_file

REPOSITORY = Path(__file__).resolve().parents[2]
MEGABYTE = 1_000_000


@dataclass
class Bench:
    """What the rows work with.

    sources: the artifacts as files, named by their path. bundle: those, packed.
    quarter, archive: a quarter of the bytes, and `tar -czf` of them, for what is slow.
    scratch: a folder that is empty when a row begins.
    """

    folder: Path
    files: list[str]
    index: Index

    @property
    def sources(self) -> Path:
        return self.folder / "sources"

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle.tar.gz"

    @property
    def archive(self) -> Path:
        return self.folder / "quarter.tar.gz"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def quarter(self) -> list[str]:
        """Every fourth file: they come in fours of one size."""
        return self.files[::4]

    def locate(self, artifact: Artifact) -> Path:
        return self.sources / artifact.path

    def shell(self, command: str, *files: str) -> None:
        """Run a command in the folder of the sources; "$@" are these files, $OUT is scratch."""
        environment = {**os.environ, "OUT": str(self.scratch), "ARCHIVE": str(self.archive)}
        subprocess.run(
            ["sh", "-ec", command, "sh", *files],
            cwd=self.sources,
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )


@dataclass(frozen=True)
class Row:
    """One piece of work. scale: its seconds are multiplied by this. often: in every round."""

    name: str
    work: Callable[[Bench], None]
    scale: int = 1
    often: bool = True


ROWS: dict[str, Row] = {}


def row(
    name: str, *, scale: int = 1, often: bool = True
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    """Make a function a row of this name."""

    def enter(work: Callable[[Bench], None]) -> Callable[[Bench], None]:
        ROWS[name] = Row(name, work, scale, often)
        return work

    return enter


# -- the rows -------------------------------------------------------------------------------------


@row("pack")
def pack(bench: Bench) -> None:
    with open(bench.scratch / "b.tar.gz", "wb") as file:
        writer.pack(bench.index, b"", bench.locate, file.fileno(), Quiet())


@row("pack, synced")
def pack_file(bench: Bench) -> None:
    writer.pack_file(bench.index, b"", bench.locate, bench.scratch / "b.tar.gz", Quiet())


@row("cat")
def cat(bench: Bench) -> None:
    bench.shell('cat "$@" > "$OUT/one"', *bench.files)


@row("cat, synced")
def cat_synced(bench: Bench) -> None:
    bench.shell('cat "$@" > "$OUT/one"; sync "$OUT/one"', *bench.files)


@row("tar -cf")
def tar(bench: Bench) -> None:
    bench.shell('tar -cf "$OUT/one.tar" "$@"', *bench.files)


@row("tar -czf", scale=4, often=False)
def tar_gzip(bench: Bench) -> None:
    bench.shell('tar -czf "$ARCHIVE" "$@"', *bench.quarter)


@row("install, synced")
def install(bench: Bench) -> None:
    with Reader.open(bench.bundle) as reader:
        reader.admit(Blobs(bench.scratch), Quiet())


@row("cp, openssl dgst")
def cp_openssl(bench: Bench) -> None:
    bench.shell('cp "$@" "$OUT"; cd "$OUT"; openssl dgst -sha256 "$@"', *bench.files)


@row("cp, openssl dgst, synced")
def cp_openssl_synced(bench: Bench) -> None:
    command = 'cp "$@" "$OUT"; cd "$OUT"; openssl dgst -sha256 "$@"; sync -f .'
    bench.shell(command, *bench.files)


@row("tar -xzf, sha256sum", scale=4, often=False)
def tar_sha256sum(bench: Bench) -> None:
    bench.shell('cd "$OUT"; tar -xzf "$ARCHIVE"; sha256sum "$@"', *bench.quarter)


@row("mirror --help")
def mirror_help(bench: Bench) -> None:
    python(bench, "-m", "mirror", "--help")


@row("import click")
def import_click(bench: Bench) -> None:
    python(bench, "-c", "import click")


def python(bench: Bench, *arguments: str) -> None:
    """A fresh interpreter."""
    subprocess.run(
        [sys.executable, *arguments],
        cwd=bench.scratch,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        check=True,
    )


@dataclass(frozen=True)
class Compared:
    """Two rows, and the aim: seconds of `ours` over seconds of `theirs`, at most."""

    ours: str
    theirs: str
    aim: float | None


COMPARED = [
    Compared("pack", "cat", 1.5),
    Compared("pack", "tar -cf", 1.0),
    Compared("pack", "tar -czf", 1 / 15),
    Compared("pack, synced", "cat, synced", None),
    Compared("install, synced", "cp, openssl dgst", 1.3),
    Compared("install, synced", "tar -xzf, sha256sum", 1 / 5),
    Compared("install, synced", "cp, openssl dgst, synced", None),
    Compared("mirror --help", "import click", 1.5),
]


# -- running them ---------------------------------------------------------------------------------


def prepare(folder: Path, size: int) -> Bench:
    """Random files of `size` bytes together: 4 of an eighth, 20 of an 80th, 200 of an 800th."""
    (folder / "sources").mkdir()
    sizes = [size // 8] * 4 + [size // 80] * 20 + [size // 800] * 200
    artifacts = []
    for number, length in enumerate(sizes):
        path = folder / "sources" / f"{number:05d}"
        with open(path, "wb") as file:
            for start in range(0, length, MEGABYTE):
                file.write(os.urandom(min(MEGABYTE, length - start)))
        artifacts.append(Artifact("files", path.name, length, hash_file(path)))
    entries = tuple(map(Entry, artifacts))
    index = Index("bench", "1", "0", "0" * 64, None, entries)
    bench = Bench(folder, [a.path for a in artifacts], index)
    writer.pack_file(index, b"", bench.locate, bench.bundle, Quiet())
    return bench


def measure(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Seconds of every round of every row that this machine has the programs for."""
    seconds: dict[str, list[float]] = {}
    for number in range(rounds):
        for entry in ROWS.values():
            if number and not entry.often:
                continue
            shutil.rmtree(bench.scratch, ignore_errors=True)
            bench.scratch.mkdir()
            os.sync()
            begun = time.perf_counter()
            try:
                entry.work(bench)
            except subprocess.CalledProcessError as error:
                print(f"{entry.name}: not measured ({error})", file=sys.stderr)
                continue
            took = (time.perf_counter() - begun) * entry.scale
            seconds.setdefault(entry.name, []).append(took)
        print(f"round {number + 1} of {rounds} is done", file=sys.stderr)
    return seconds


def report(seconds: dict[str, list[float]], size: int) -> list[str]:
    """The two tables and the memory, as lines."""
    lines = [f"{'work':<26}{'median s':>10}{'fastest':>9}{'slowest':>9}{'MB/s':>8}"]
    for name, took in seconds.items():
        median = statistics.median(took)
        rate = "" if name in ("mirror --help", "import click") else f"{size / median / 1e6:,.0f}"
        note = f"  (a quarter, times {ROWS[name].scale})" if ROWS[name].scale > 1 else ""
        lines.append(f"{name:<26}{median:>10.2f}{min(took):>9.2f}{max(took):>9.2f}{rate:>8}{note}")
    lines += ["", f"{'work':<18}{'against':<26}{'ratio':>7}{'fastest':>9}{'aim':>6}"]
    for pair in COMPARED:
        if pair.ours in seconds and pair.theirs in seconds:
            ours, theirs = seconds[pair.ours], seconds[pair.theirs]
            ratio = statistics.median(ours) / statistics.median(theirs)
            aim = f"{pair.aim:>6.2f}" if pair.aim else f"{'-':>6}"
            verdict = "" if not pair.aim else "  met" if ratio <= pair.aim else "  missed"
            fastest = min(ours) / min(theirs)
            lines.append(
                f"{pair.ours:<18}{pair.theirs:<26}{ratio:>7.2f}{fastest:>9.2f}{aim}{verdict}"
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    lines += ["", f"peak memory of pack and install: {peak / 1e6:.0f} MB resident (aim: under 200)"]
    return lines


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--size", type=int, default=1000, help="megabytes of artifacts (1000)")
    parser.add_argument("--rounds", type=int, default=5, help="how often each row runs (5)")
    parser.add_argument("--folder", type=Path, help="where to work (a temporary folder)")
    options = parser.parse_args()
    size = options.size * MEGABYTE
    with tempfile.TemporaryDirectory(prefix="mirror-bench-", dir=options.folder) as folder:
        bench = prepare(Path(folder), size)
        seconds = measure(bench, options.rounds)
    print("\n".join(report(seconds, size)))


if __name__ == "__main__":
    main()
