"""mirror probe: a machine, an environment and a root in one file, or in a photo's worth of text."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import hardware
from mirror import probe as use
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.inventory import MAX_SUMMARY, CondaPackage, Gpu, Inventory, parse, summary
from mirror.core.progress import Quiet
from mirror.core.summary import words
from mirror.errors import UsageError
from mirror.project import open_project
from mirror.store.generations import Root

GPUS = tuple(
    Gpu("NVIDIA H200", 143771, "9.0", f"GPU-{n:08x}-1c9e-4f0b-9d3c-5a2e8b7f6c1d") for n in range(8)
)
SERVER = Inventory(
    python="3.11",
    platform="linux-x86_64",
    glibc="2.35",
    packages=tuple(sorted(f"package-{n}=={n % 9}.{n % 7}.{n}" for n in range(60))),
    conda=(CondaPackage("numpy", "2.1", "py311h1", "linux-64", python=True),),
    cpu="Intel(R) Xeon(R) Platinum 8480C",
    level="x86-64-v4",
    memory=2**41,
    driver="570.124.06",
    cuda="12.8",
    gpus=GPUS,
    bundle="ab" * 32,
    bundles=("ab" * 32, "cd" * 32),
    held=("12" * 32, "34" * 32),
    free=10**12,
)


def joined(lines: list[str]) -> bytes:
    return "\n".join(lines).encode()


def test_an_inventory_reads_back_as_it_was_written() -> None:
    assert parse(json.dumps(SERVER.to_json()).encode(), "s.json") == SERVER


def test_a_target_takes_driver_and_gpus_from_an_inventory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    manifest = tmp_path / "m.yaml"
    for name, data in (
        ("file", json.dumps(SERVER.to_json()).encode()),
        ("photo", joined(summary(SERVER))),
    ):
        (tmp_path / name).write_bytes(data)
        for more, driver, gpus in (
            ("", "570.124.06", ("sm_90",)),
            (", driver: '535.1', gpus: [sm_80]", "535.1", ("sm_80",)),
        ):
            text = f"name: t\nversion: '1'\ntarget: {{inventory: {name}{more}}}\n"
            text += "wheels: {requirements: [torch]}\n"
            manifest.write_text(text, encoding="utf-8")
            target = open_project(manifest, Quiet()).context.target
            assert (target.driver, target.gpus, target.glibc) == (driver, gpus, "2.35")
            assert target.provided == SERVER.packages


def test_what_is_not_known_is_not_written() -> None:
    bare = Inventory("3.11", "linux-x86_64", "2.35", ())
    assert set(bare.to_json()) == {"format", "python", "platform", "glibc", "packages"}
    assert parse(json.dumps(bare.to_json()).encode(), "s.json") == bare
    none = replace(bare, gpus=(), held=())
    assert parse(json.dumps(none.to_json()).encode(), "s.json") == none != bare


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cpu", 1),
        ("driver", "570; rm"),
        ("cuda", 12),
        ("memory", "1"),
        ("memory", -1),
        ("free", True),
        ("gpus", [{"name": "x"}]),
        ("gpus", [{"name": "x", "memory": 1, "capability": "nine", "uuid": ""}]),
        ("gpus", 3),
        ("bundle", "ab"),
        ("bundles", "ab"),
        ("bundles", ["\x1b[2J"]),
        ("held", ["AB" * 32]),
        ("held", {}),
        ("held", 1),
    ],
)
def test_an_inventory_of_another_shape_is_named(key: str, value: object) -> None:
    if (key, value) == ("held", {}):
        value = {"x": 1}
    data = json.dumps({**SERVER.to_json(), key: value}).encode()
    with pytest.raises(UsageError, match=r"s\.json is not an inventory") as caught:
        parse(data, "s.json")
    assert str(caught.value).isprintable() or "\n" in str(caught.value)


def test_a_summary_holds_all_but_the_hashes_of_files() -> None:
    lines = summary(SERVER)
    assert len(joined(lines)) < MAX_SUMMARY
    assert max(map(len, lines)) < 80
    assert set("".join(lines)) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
    expected = replace(SERVER, held=None, omitted=("held",))
    assert parse(joined(lines), "photo") == expected
    assert parse(" ".join(lines).encode(), "photo") == expected
    assert parse(b"\n  " + joined(lines).lower() + b"\r\n", "photo") == expected
    misread = joined(lines).replace(b"O", b"0").replace(b"I", b"1").replace(b"B", b"8")
    assert parse(misread.replace(b"M1RR0R", b"MIRROR"), "photo") == expected


def test_a_summary_of_much_leaves_out_packages_and_says_so() -> None:
    many = tuple(sorted(f"{os.urandom(9).hex()}=={n}" for n in range(200)))
    lines = summary(replace(SERVER, packages=many))
    assert len(joined(lines)) < MAX_SUMMARY
    found = parse(joined(lines), "photo")
    assert found == replace(
        SERVER, held=None, conda=(), packages=(), omitted=("held", "conda", "packages")
    )
    with pytest.raises(UsageError, match="no summary that is short enough"):
        summary(replace(SERVER, cpu=os.urandom(3000).hex()))


def again(text: str) -> str:
    """The first character of a word as another that nobody takes for it."""
    return ("K" if text[0] != "K" else "W") + text[1:]


@pytest.mark.parametrize(
    "spell",
    [
        lambda lines: "\ufeff" + "\r\n".join(lines),
        lambda lines: "".join(lines),
        lambda lines: "\n".join(f"{line[:10]} {line[10:]}" for line in lines),
        lambda lines: "\n".join(textwrap.wrap("".join(lines), 37)),
        lambda lines: "$ mirror probe --summary\n" + "\n".join(lines) + "\nuser@host:~$",
        lambda lines: " ".join(reversed(lines)),
        lambda lines: " ".join([*lines[:3], *lines]),
        lambda lines: "\n".join(lines).translate(str.maketrans("OIB", "0|8")),
        lambda lines: "\n".join(one_swap(line, "S5Z2G6LIQO", "5S2Z6GILOQ") for line in lines),
    ],
    ids=["notepad", "joined", "spaced", "wrapped", "prompt", "order", "twice", "digits", "alike"],
)
def test_a_summary_is_read_however_it_was_copied(spell: Callable[[list[str]], str]) -> None:
    expected = replace(SERVER, held=None, omitted=("held",))
    text = spell(summary(SERVER))
    assert parse(text.encode(), "photo") == expected
    assert parse(text.encode("utf-16"), "photo") == expected


def one_swap(line: str, old: str, new: str) -> str:
    """The line with the last of these characters taken for another."""
    at = max(line.rfind(letter) for letter in old)
    return line[:at] + line[at:].translate(str.maketrans(old, new))[:1] + line[at + 1 :]


def test_a_line_that_was_copied_wrong_is_named() -> None:
    lines = summary(SERVER)

    def problems(*wrong: str) -> list[str]:
        with pytest.raises(UsageError, match="was not copied as it stood") as caught:
            parse(joined(list(wrong)), "photo")
        assert "mirror probe --summary" in (caught.value.hint or "")
        return list(caught.value.problems)

    *front, last = lines
    assert problems(*lines[:3], again(lines[3]), *lines[4:]) == [
        f"line 4 is misread: {again(lines[3])}"
    ]
    [short] = problems(*lines[:3], lines[3][:20] + lines[3][21:], *lines[4:])
    assert short.startswith("line 4 is misread: ")
    assert problems(*lines[:2], *lines[3:]) == ["line 3 is not there"]
    assert problems(*lines[:2], *lines[4:]) == ["line 3 is not there", "line 4 is not there"]
    assert problems(*front) == [f"line {len(lines)} and those after it are not there"]
    assert problems(lines[0]) == ["line 2 and those after it are not there"]
    [head] = problems(f"{lines[0][:6]}{again(lines[0][6:])}", *lines[1:])
    assert head.startswith("line 1 is misread: MIRROR")
    assert len(problems(*front, again(last))) == 1
    for other in (b"MIRROR", joined(lines[1:]), b"mirrored: yes", b""):
        with pytest.raises(UsageError, match="is not an inventory"):
            parse(other, "photo")


def test_a_summary_cannot_grow_without_end() -> None:
    lines = words(json.dumps({**SERVER.to_json(), "cpu": " " * 2**21}).encode())
    assert len(joined(lines)) < 10_000
    with pytest.raises(UsageError, match=r"is not an inventory|was not copied"):
        parse(joined(lines), "photo")


def test_a_probe_says_what_a_root_holds(tmp_path: Path) -> None:
    root = Root(tmp_path / "root")
    before = use.probe(None, root)
    assert before.bundle is None
    assert before.held is None
    assert before.free
    assert before.packages == tuple(sorted(before.packages))
    root.prepare()
    assert use.probe(None, root).held == ()
    digests = []
    for name in ("a", "b"):
        blob = root.blobs.put(name.encode())
        entry = Entry(Artifact("files", f"files/{name}", 1, blob))
        gone = Entry(Artifact("files", "files/gone", 1, "0" * 64))
        index = Index(name, "1", "0", "0" * 64, None, (entry, gone))
        generation = root.begin()
        root.finish(generation, index)
        root.commit(generation)
        digests.append(index.digest)
    root.blobs.put(b"listed by nobody")
    found = use.probe(None, root)
    assert found.bundle == digests[1]
    assert found.bundles == (digests[1], digests[0])
    assert found.held == tuple(sorted(set(root.blobs) - {root.blobs.put(b"listed by nobody")}))
    assert parse(json.dumps(found.to_json()).encode(), "s.json") == found


def test_the_level_of_a_cpu() -> None:
    v2 = "lm cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
    v3 = f"{v2} abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"
    text = "processor\t: 0\nmodel name\t: A CPU: fast\nflags\t\t: {}\n"
    assert hardware.parse_cpu(text.format("fpu lm")) == ("A CPU: fast", "x86-64-v1")
    assert hardware.parse_cpu(text.format(v2)) == ("A CPU: fast", "x86-64-v2")
    assert hardware.parse_cpu(text.format(v3)) == ("A CPU: fast", "x86-64-v3")
    v4 = f"{v3} avx512f avx512bw avx512cd avx512dq avx512vl"
    assert hardware.parse_cpu(text.format(v4))[1] == "x86-64-v4"
    assert hardware.parse_cpu(text.format(v4.replace("avx2", "")))[1] == "x86-64-v2"
    assert hardware.parse_cpu("processor : 0\nFeatures : fp asimd\n") == ("", "")


SMI = """#!/bin/sh
case "$*" in
*compute_cap*) [ "$OLD" ] && exit 2; tail=", 9.0";;
--query-gpu*) ;;
*) echo "| NVIDIA-SMI 570.86    Driver Version: 570.86    CUDA Version: 12.8     |"; exit;;
esac
echo "NVIDIA H200, 143771 MiB, GPU-1, 570.86$tail"
echo "NVIDIA GB10, [N/A], GPU-2, 570.86$tail"
"""


def test_gpus_as_the_driver_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    first, second = (
        Gpu("NVIDIA H200", 143771, "9.0", "GPU-1"),
        Gpu("NVIDIA GB10", None, "9.0", "GPU-2"),
    )
    assert hardware.gpus() == ("570.86", "12.8", (first, second))
    assert first.architecture == "sm_90"
    monkeypatch.setenv("OLD", "1")
    old = tuple(replace(gpu, capability="") for gpu in (first, second))
    assert hardware.gpus() == ("570.86", "12.8", old)
    assert old[0].architecture == ""
    program.write_text("#!/bin/sh\nexit 9\n")
    assert hardware.gpus() == ("", "", None)
    program.write_text("#!/bin/sh\necho No devices were found\n")
    assert hardware.gpus() == ("", "", ())
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert hardware.gpus() == ("", "", None)
