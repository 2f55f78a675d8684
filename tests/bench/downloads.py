"""Downloading from far away, set against the Hub's own client and the fastest general one."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

from tests.bench import origin
from tests.bench.rows import REPOSITORY, Compared, Group, Row, need, run, write_random

#: The small files: how many, and from how many bytes to how many.
SMALL = (200, 4_000, 40_000)
ARIA2 = ("aria2c", "--no-conf", "--quiet", "-x16")
#: Row names.
URLS, HUB = "mirror, by URLs", "mirror, from the hub"
PLAIN, CHECKED, SPLIT = "aria2c -x16 -j5", "aria2c, checksums", "aria2c -s16, checksums"
CLIENT = "hf download"


class Downloads(Group):
    """One file of `size` bytes and 200 small ones, from a server that is 30 ms away.

    Each connection brings at most 40 MB/s, and takes 30 ms to be made and for each answer. mirror
    and aria2c are given the addresses of the files, with sha256 each; mirror and hf the name of the
    dataset, which both list first. Every row is a process, and begins with an empty cache.
    aria2c is measured as people call it, which checks nothing, and with checksums, with which it
    does what mirror does; and so once more with all 16 connections allowed for one file.
    """

    name = "downloads"
    aims = (
        Compared(URLS, PLAIN, 1.0),
        Compared(URLS, CHECKED, 1.0),
        Compared(URLS, SPLIT, 1.0),
        Compared(HUB, CLIENT, 1.0),
    )

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.folder, self.scratch = folder, scratch
        self.peak = 0
        files = folder / "files"
        files.mkdir()
        chance = random.Random(0)
        write_random(files / "model.safetensors", size)
        count, least, most = SMALL
        for number in range(count):
            write_random(files / f"{number:03}.json", chance.randrange(least, most))
        self.size = sum(path.stat().st_size for path in files.iterdir())
        self.server = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.origin", files],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.server.stdout is not None
        self.port = int(self.server.stdout.readline())
        served = origin.listed(files)
        wanted = [
            {
                "url": origin.address(self.port, name),
                "label": name,
                "digest": f"sha256:{file.sha256}",
                "size": file.size,
            }
            for name, file in served.items()
        ]
        (folder / "wanted.json").write_text(json.dumps(wanted), encoding="utf-8")
        for name, checksums in (("plain.txt", False), ("checked.txt", True)):
            lines = []
            for item, file in zip(wanted, served.values(), strict=True):
                lines += [item["url"], f"  out={item['label']}"]
                lines += [f"  checksum=sha-256={file.sha256}"] if checksums else []
            (folder / name).write_text("\n".join([*map(str, lines), ""]), encoding="utf-8")

    def close(self) -> None:
        """End the server."""
        self.server.communicate()

    def rows(self) -> list[Row]:
        """In the order of their speed: the last is run once only."""
        return [
            Row(URLS, lambda: self.mirror("urls", self.folder / "wanted.json"), size=self.size),
            Row(HUB, lambda: self.mirror("hub", origin.REPO), size=self.size),
            Row(PLAIN, lambda: self.aria2("plain.txt", "-j5"), size=self.size),
            Row(CHECKED, lambda: self.aria2("checked.txt", "-j5"), size=self.size),
            Row(SPLIT, lambda: self.aria2("checked.txt", "-j5", "-s16"), size=self.size),
            Row(CLIENT, self.hf, size=self.size, often=False),
        ]

    def notes(self) -> list[str]:
        """The most that a process of mirror took."""
        peak = f"{self.peak / 1e6:.0f} MB resident"
        return [f"peak memory of mirror's downloads: {peak} (aim: under 200)"]

    def mirror(self, how: str, what: str | Path) -> None:
        peak = subprocess.run(
            [sys.executable, "-m", "tests.bench.downloads", how, what, self.scratch / "store"],
            cwd=REPOSITORY,
            env=os.environ | self.variables(),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        self.peak = max(self.peak, int(peak))

    def aria2(self, listing: str, *options: str) -> None:
        need("aria2c")
        run(*ARIA2, *options, f"--input-file={self.folder / listing}", folder=self.scratch)

    def hf(self) -> None:
        hf = Path(sys.executable).with_name("hf")
        need(str(hf))
        command = (hf, "download", "--repo-type", "dataset", origin.REPO)
        run(*command, folder=self.scratch, variables=self.variables())

    def variables(self) -> dict[str, str]:
        """Which hub, and an empty cache for its client."""
        return {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.port}",
            "HF_HOME": str(self.scratch / "hf"),
            "HF_HUB_DISABLE_UPDATE_CHECK": "1",
        }


def main() -> None:
    """In a process of its own: what mirror does. Prints the most memory it took, in bytes."""
    from mirror.core.progress import Quiet
    from mirror.fetch.http import Fetcher, Request
    from mirror.store.blobs import Blobs

    how, what, store = sys.argv[1:]
    blobs = Blobs(Path(store))
    fetcher = Fetcher(blobs, Quiet())
    if how == "urls":
        fetcher.fetch([Request(**item) for item in json.loads(Path(what).read_bytes())])
    else:
        from mirror.core.target import Target
        from mirror.ecosystems.models.source import Repositories
        from mirror.ecosystems.source import Context

        source, target = Repositories("datasets"), Target(python="3.11", platform="linux-x86_64")
        context = Context(Path(store), target, blobs, fetcher, Quiet())
        artifacts = source.resolve([what], context)
        missing = [a for a in artifacts if not blobs.has(a.sha256)]
        requests = source.requests(missing, [what], context)
        fetcher.fetch([request for request in requests if isinstance(request, Request)])
    print(_peak())


def _peak() -> int:
    """Bytes resident at most; not of the process that this one was forked from."""
    status = Path("/proc/self/status")
    if status.is_file():
        lines = status.read_text(encoding="utf-8").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
