"""A channel as large as the largest one: time and memory of choosing some packages from it.

python -m tests.bench.conda_repodata FOLDER     make the channel there, and choose from it
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from mirror.core.artifact import Json
from tests.bench.rows import REPOSITORY, Compared, Group, Limited, Row, run

NAMES, BUILDS = 25_000, 20
#: Bytes that choosing may take, resident at the same time.
MEMORY = 10**9
#: Of what is asked for, about 150,000 records can be reached, more than of most environments.
WANTED = f"package-{NAMES - 1000:05d}"


class Repodata(Group):
    """Choosing from 500,000 records, in a process of its own."""

    name: ClassVar[str] = "repodata"
    aims: ClassVar[Sequence[Compared | Limited]] = (Limited("choose from 500,000", 60.0),)

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self._channel, self._scratch = write_channel(folder / "channel"), scratch

    def rows(self) -> list[Row]:
        """One."""
        return [Row("choose from 500,000", self._choose, often=False)]

    def _choose(self) -> None:
        module = "tests.bench.conda_repodata"
        run(sys.executable, "-m", module, self._channel, self._scratch, folder=REPOSITORY)


def write_channel(folder: Path) -> Path:
    """A channel whose linux-64 has 500,000 records in 300 MB; nothing of it can be downloaded."""
    for subdir in ("linux-64", "noarch"):
        (folder / subdir).mkdir(parents=True)
    libgcc = {**_record("libgcc", 13, 0, []), "subdir": "noarch"}
    document = {"info": {"subdir": "noarch"}, "packages.conda": {"libgcc-13.0-0.conda": libgcc}}
    (folder / "noarch" / "repodata.json").write_text(json.dumps(document), encoding="utf-8")
    with open(folder / "linux-64" / "repodata.json", "w", encoding="utf-8") as file:
        file.write('{"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": {')
        separator = "\n"
        for name, record in _records():
            file.write(f"{separator}{json.dumps(name)}: {json.dumps(record)}")
            separator = ",\n"
        file.write('}, "removed": [], "repodata_version": 1}')
    return folder


def _records() -> Iterator[tuple[str, dict[str, Json]]]:
    """As in life, a few packages are what most others depend on."""
    chance = random.Random(1)
    for package in range(NAMES):
        for build in range(BUILDS):
            depends = ["libgcc >=13", "__glibc >=2.17,<3.0.a0"]
            for _ in range(4 if package else 0):
                other = int(package * chance.random() ** 12)
                depends.append(f"package-{other:05d} >={chance.randrange(1 + build // 2)}.0,<100")
            record = _record(f"package-{package:05d}", build, package * BUILDS + build, depends)
            yield f"{record['name']}-{record['version']}-{record['build']}.conda", record


def _record(name: str, version: int, number: int, depends: list[str]) -> dict[str, Json]:
    return {
        "arch": "x86_64",
        "build": f"h{number:07x}_0",
        "build_number": 0,
        "constrains": [],
        "depends": depends,
        "license": "BSD-3-Clause",
        "license_family": "BSD",
        "md5": hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest(),
        "name": name,
        "platform": "linux",
        "sha256": hashlib.sha256(b"%d" % number).hexdigest(),
        "size": 100_000 + number,
        "subdir": "linux-64",
        "timestamp": 1_700_000_000_000 + number,
        "version": f"{version}.0",
    }


def choose(channel: Path, scratch: Path) -> int:
    """How many bytes were resident at most, while some packages of the channel were chosen."""
    from mirror.core.progress import Quiet
    from mirror.core.requirements.values import Line
    from mirror.core.target import Target
    from mirror.ecosystems.conda.solving import channels, solver, subdirs
    from mirror.ecosystems.conda.solving.asked import Spec, match_spec

    found, _ = channels.parse([Line(str(channel), "bench")], scratch)
    opened = subdirs.opened(found, ("linux-64", "noarch"), scratch, Quiet())
    records = solver.solve(
        [Spec(WANTED, "bench", match_spec(WANTED))], opened, Target("3.11", "linux-x86_64", "2.28")
    )
    assert any(record.name.normalized == WANTED for record in records)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Choose, and fail when that took too much memory."""
    folder = Path(sys.argv[1])
    channel = folder if (folder / "noarch").is_dir() else write_channel(folder)
    peak = choose(channel.resolve(), Path(sys.argv[-1]).resolve())
    print(f"{peak / 1e6:.0f} MB resident (aim: under {MEMORY / 1e6:.0f})")
    if peak > MEMORY:
        sys.exit(f"it took {peak / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
