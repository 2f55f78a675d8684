"""The dictionary: each entry on a log of its own, alone and among others; none on good logs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from mirror.verify.symptoms import TABLE, diagnose, diagnose_all, excerpt, render
from mirror.verify.symptoms.entry import LEVELS, Entry
from tests.symptoms import LOGS, tables, written

KEYS = [entry.key for entry in TABLE]
BY_KEY = {entry.key: entry for entry in TABLE}
RUNGS = {"p2p-nvl", "p2p-off", "cumem-host-off", "shm-off", "nvls-off", "ib-off"}
#: What the ranks that did nothing wrong say when another one is gone.
ECHOES = ("collective-timeout", "peer-gone", "nccl-remote", "rendezvous")


def log(name: str) -> str:
    return (LOGS / f"{name}.txt").read_text(encoding="utf-8")


def keys(text: str) -> list[str]:
    return [symptom.key for symptom in diagnose(text)]


def of_level(level: str) -> Iterable[str]:
    return [entry.key for entry in TABLE if entry.level == level]


@pytest.mark.parametrize("key", KEYS)
def test_an_entry_is_told_for_its_log_and_no_other_is(key: str) -> None:
    assert keys(log(key)) == [key]
    assert len(log(key).splitlines()) >= 4


def test_every_entry_has_a_log_and_every_log_an_entry() -> None:
    assert sorted(file.stem for file in LOGS.glob("*.txt")) == sorted(KEYS)


@pytest.mark.parametrize("file", sorted((LOGS / "healthy").glob("*.txt")), ids=lambda f: f.stem)
def test_nothing_is_told_of_a_run_that_went_well(file: Path) -> None:
    assert keys(file.read_text(encoding="utf-8")) == []


def test_there_are_logs_of_runs_that_went_well() -> None:
    assert {"training", "nccl", "vllm"} <= {f.stem for f in (LOGS / "healthy").glob("*.txt")}


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.key)
def test_each_of_an_entrys_texts_is_enough(entry: Entry) -> None:
    for pattern in entry.patterns:
        line = f"[rank3]: before {pattern.replace('*', ' something ')} after"
        assert entry.key in keys(f"step 1\n{line}\nstep 2\n"), pattern


@pytest.mark.parametrize("key", of_level("cause"))
def test_the_other_ranks_words_do_not_hide_the_cause(key: str) -> None:
    logs = {f"rank {n}": log(echo) for n, echo in enumerate(ECHOES)}
    logs |= {"rank 4": log(key), "launcher": log("killed")}
    found = diagnose_all(logs)
    assert [symptom.key for symptom in found] == [key]
    assert "rank 4" in found[0].where


@pytest.mark.parametrize("key", of_level("general"))
def test_a_signal_is_told_before_what_the_other_ranks_say(key: str) -> None:
    found = diagnose_all({f"rank {n}": log(name) for n, name in enumerate([*ECHOES, key])})
    assert [symptom.key for symptom in found] == [key]


def test_echoes_are_told_when_nothing_explains_them() -> None:
    text = "\n".join(map(log, ECHOES))
    assert sorted(keys(text)) == sorted(ECHOES)
    (hang, *_) = [s for s in diagnose(text) if s.key == "collective-timeout"]
    assert hang.rungs[:2] == ("p2p-nvl", "p2p-off")


def test_a_warning_is_told_after_all_else_and_hides_nothing() -> None:
    assert keys(log("tokenizers-forked") + log("peer-gone")) == ["peer-gone", "tokenizers-forked"]


def test_several_causes_are_told_in_the_order_of_the_table() -> None:
    found = keys(log("disk-full") + log("gpu-memory") + log("set-epoch"))
    assert found == ["gpu-memory", "disk-full", "set-epoch"]


def test_the_special_is_told_instead_of_the_general() -> None:
    everywhere = log("gpu-memory") + log("nccl-memory")
    assert keys(everywhere) == ["nccl-memory"]
    assert keys(log("module-missing") + log("accelerate-missing")) == ["accelerate-missing"]
    assert keys(log("gpu-memory") + log("gpu-memory-shared")) == ["gpu-memory-shared"]


def test_the_line_that_shows_it_is_quoted_and_the_log_named() -> None:
    logs = {f"rank {n}": log("gpu-memory") for n in range(6)} | {"rank 6": "all well\n"}
    (symptom,) = diagnose_all(logs)
    assert symptom.where == tuple(f"rank {n}" for n in range(6))
    assert symptom.evidence.startswith("[rank0]: torch.OutOfMemoryError: CUDA out of memory.")
    assert len(symptom.evidence) <= 300
    name, seen, why, advice, known = render([symptom])
    assert name == "The GPU's memory is full"
    assert seen.endswith("(rank 0, rank 1, rank 2, rank 3 and 2 more)")
    assert symptom.cause in why
    assert symptom.advice in advice
    assert symptom.source in known
    assert render([]) == []


def test_nothing_from_a_log_moves_the_cursor() -> None:
    hostile = "\x1b[31mCUDA out of\x1b[0m memory\x1b]0;owned\x07\x1b[2J\u202e\u009b1A\n"
    (symptom,) = diagnose_all({"rank \x1b[2J": hostile})
    assert symptom.key == "gpu-memory"  # colours inside the words are looked through
    assert all(line.isprintable() for line in render([symptom]))


def test_a_line_drawn_over_by_a_progress_bar_is_read() -> None:
    bar = "".join(f"\r{n:3d}%|{'#' * 40}| {n}/1000" for n in range(100))
    (symptom,) = diagnose(f"{bar}\rOSError: [Errno 28] No space left on device\r\n")
    assert symptom.evidence == "OSError: [Errno 28] No space left on device"


def test_words_far_into_a_long_line_are_quoted() -> None:
    (symptom,) = diagnose(
        "x" * 100_000 + " CUDA out of memory. Tried to allocate 2 GiB" + "y" * 999
    )
    assert "CUDA out of memory. Tried to allocate 2 GiB" in symptom.evidence


def test_the_parts_of_a_text_must_stand_in_one_line_and_in_order() -> None:
    assert keys("Cuda failure 2 'out of memory'") == ["nccl-memory"]
    assert keys("Cuda failure 2\n'out of memory'") == []
    assert keys("'out of memory' Cuda failure 2") == []
    # The first place where a text begins need not be the one where it goes on.
    assert keys("Cuda failure 1\nCuda failure Cuda failure 2 'out of memory'") == ["nccl-memory"]


def test_of_a_long_log_the_beginning_and_the_end_are_read(tmp_path: Path) -> None:
    filler = "{'loss': 1.0}\n" * 500_000
    warned, ended = log("driver-too-old"), log("set-epoch")
    text = warned + filler + log("disk-full") + filler + ended
    file = tmp_path / "stderr.log"
    file.write_text(text, encoding="utf-8")
    read = excerpt(file)
    assert len(read.encode()) <= 5_000_001
    assert keys(read) == keys(text) == ["driver-too-old", "set-epoch"]


def test_a_log_is_read_whatever_its_bytes(tmp_path: Path) -> None:
    file = tmp_path / "log"
    assert excerpt(file) == ""
    file.write_bytes(b"\xff\xfe\x00 CUDA out of memory \xe6\xbc\n")
    assert keys(excerpt(file)) == ["gpu-memory"]
    file.write_bytes(b"")
    assert keys(excerpt(file)) == []


#: What makes a careless search slow: beginnings that never go on, no line ends, only line ends.
BEGINNINGS = [pattern.split("*")[0] for entry in TABLE for pattern in entry.patterns]
HOSTILE = {
    "one line of one letter": "a",
    "line ends": "\n",
    "carriage returns": "\r",
    "colours that never end": "\x1b[1;1;1",
    "wide characters": "CUDA \U0001f600 error ",
    "beginnings, a line each": "\n".join(part[:-1] for part in BEGINNINGS) + "\n",
    "beginnings in one line": " ".join(part[:-1] for part in BEGINNINGS),
    "whole beginnings": "".join(
        f"{pattern.partition('*')[0]}\n"
        for entry in TABLE
        for pattern in entry.patterns
        if "*" in pattern
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_fifty_megabytes_made_to_be_slow_take_seconds(kind: str) -> None:
    unit = HOSTILE[kind]
    text = unit * (50_000_000 // len(unit))
    begin = time.process_time()
    diagnose(text)
    assert time.process_time() - begin < 30  # measured: 2 at most


def test_the_table_is_consistent() -> None:
    assert len(set(KEYS)) == len(KEYS)
    assert len({entry.name for entry in TABLE}) == len(TABLE)
    for entry in TABLE:
        assert entry.level in LEVELS
        assert set(entry.rungs) <= RUNGS, entry.key
        assert set(entry.hides) <= set(KEYS) - {entry.key}, entry.key
        assert all(BY_KEY[key].level != "notice" for key in entry.hides), entry.key
        assert entry.patterns, entry.key
        for pattern in entry.patterns:
            assert all(pattern.split("*")), pattern
            assert len(pattern.split("*")[0]) >= 4, pattern
            assert "\n" not in pattern
        assert len(entry.name) <= 75, entry.name
        for text in (entry.name, entry.cause, entry.advice, entry.source):
            assert text.isprintable()
            assert text == text.strip() != ""
        assert entry.cause.endswith((".", ")"))
        assert entry.advice.endswith((".", ")"))


def test_what_people_met_on_real_servers_is_all_in_it() -> None:
    """The dictionary's list of known issues, and every row of the field notes that logs show."""
    sources = " ".join(entry.source for entry in TABLE)
    for issue in (
        *("nccl 2418", "pytorch 152780", "nccl-tests 287", "pytorch 152302", "nccl 2079"),
        *("nccl-tests 117", "torchtitan 853", "pytorch 5040", "pytorch 167244", "pytorch 162531"),
        *("pytorch 35710", "pytorch 177472", "verl 161", "torchtitan 423", "pytorch 150532"),
        *("vllm 7074", "pytorch 186591", "accelerate 3245"),
    ):
        assert issue in sources
    said = {
        "RuntimeError: CUDA error: an illegal memory access was encountered": "illegal-access",
        "bash: accelerate: command not found": "accelerate-missing",
        "ModuleNotFoundError: No module named 'companionguard'": "module-missing",
        "TypeError: '<=' not supported between instances of 'float' and 'str'": "number-as-text",
        "RuntimeError: No backend type associated with device type cpu": "no-backend-for-cpu",
        "RuntimeError: cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned": (
            "pin-memory"
        ),
        "AttributeError: 'SequentialSampler' object has no attribute 'set_epoch'": "set-epoch",
        "OSError: Can't load tokenizer for 'hfl/chinese-macbert-large'": "model-files-missing",
        "bash: ./run.sh: /bin/bash^M: bad interpreter: No such file": "carriage-returns",
        "ModuleNotFoundError: No module named 'wandb'": "logger-missing",
        "ImportError: libcudart.so.12.1: cannot open shared object file: No such": (
            "cuda-library-missing"
        ),
        "HTTPError: 403 Client Error. Cannot access gated repo": "gated-model",
        "HTTPError: 401 Client Error: Unauthorized for url": "gated-model",
        "ConnectionRefusedError: [Errno 111] Connection refused": "connection-refused",
        "torch.OutOfMemoryError: CUDA out of memory.": "gpu-memory",
    }
    assert {line: keys(line) for line in said} == {line: [key] for line, key in said.items()}


def test_the_documentation_is_made_from_the_table() -> None:
    assert written()[1] == tables(), "python -m tests.symptoms writes them"
