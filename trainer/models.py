"""Whether one bundled revision can be used with no network: by plain path and by its id."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainer import loading
from trainer.offline import refuse_sockets
from trainer.results import write_json

#: name, verdict ("pass", "warn", "fail", "skip"), evidence.
Found = tuple[str, str, str]
#: What is looked at, by kind of repository.
LOOKS = {
    "models": ("files", "config", "weights", "tokenizer", "by id", "transformers"),
    "datasets": ("files",),
    "spaces": ("files",),
}


def main(arguments: list[str]) -> int:
    """Leave a list of {"name", "verdict", "evidence"} in a file.

    revisions: what the repository must be found as. folder: where its files, all of `files`, are.
    """
    parser = argparse.ArgumentParser(prog="trainer models")
    parser.add_argument("--out", type=Path, required=True, help="file for the answer")
    parser.add_argument(
        "--about", type=Path, required=True, help="JSON: kind, repo, revisions, folder, files"
    )
    options = parser.parse_args(arguments)
    about = json.loads(options.about.read_bytes())
    attempts = refuse_sockets()
    found = [
        row
        for name in LOOKS[about["kind"]]
        for row in looked(
            name, Path(about["folder"]), about["repo"], about["revisions"], about["files"]
        )
    ]
    if attempts:
        found.append(("network", "fail", "tried to reach out: " + "; ".join(attempts[:5])))
    else:
        found.append(("network", "pass", "nothing tried to reach a network"))
    keys = ("name", "verdict", "evidence")
    write_json(options.out, [dict(zip(keys, row)) for row in found])  # noqa: B905 -- Python 3.9
    return 0


def looked(
    name: str, folder: Path, repo: str, revisions: list[str], files: list[str]
) -> Iterator[Found]:
    """One look at a repository; an exception in it is a failure, in its own words."""
    look: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
        "files": lambda: _files(folder, files),
        "config": lambda: _config(folder),
        "weights": lambda: _weights(folder, files),
        "tokenizer": lambda: _tokenizer(folder, files),
        "by id": lambda: _by_id(repo, revisions, folder, files),
        "transformers": lambda: loading.look(folder, files),
    }
    try:
        for verdict, evidence in look[name]():
            yield name, verdict, evidence
    except Exception as error:  # noqa: BLE001 -- whatever a library raises on a bad model
        yield name, "fail", f"{type(error).__name__}: {error}"[:500]


def _files(folder: Path, files: list[str]) -> Iterator[tuple[str, str]]:
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        yield "fail", f"{folder} lacks {', '.join(missing[:10])}"
    else:
        yield "pass", f"{len(files)} files under {folder}"


def _config(folder: Path) -> Iterator[tuple[str, str]]:
    if not (folder / "config.json").is_file():
        yield "skip", "it has no config.json"
        return
    table = json.loads((folder / "config.json").read_bytes())
    yield "pass", f"model_type {table.get('model_type', 'not stated')}"


def _weights(folder: Path, files: list[str]) -> Iterator[tuple[str, str]]:
    names = [file for file in files if file.endswith(".safetensors")]
    if not names:
        yield "skip", "it has no safetensors file"
        return
    through_torch = all(importlib.util.find_spec(name) for name in ("safetensors", "torch"))
    read = _count_by_torch if through_torch else count_by_header
    count = sum(read(folder / name) for name in names)
    how = "safetensors and torch" if through_torch else "its header: no torch here"
    yield "pass", f"{count} tensors in {len(names)} file(s), read through {how}"


def _count_by_torch(file: Path) -> int:
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        names = list(opened.keys())
        for name in names:
            flat = opened.get_tensor(name).flatten()
            if flat.numel():
                flat[-1].item()  # the last page is there
    return len(names)


def count_by_header(file: Path) -> int:
    """How many tensors the header names. Raises ValueError unless they fill the file exactly."""
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header: dict[str, Any] = json.loads(stream.read(length))
        size = stream.seek(0, 2)
    header.pop("__metadata__", None)
    end = 0
    for begin, stop in sorted(tensor["data_offsets"] for tensor in header.values()):
        if begin != end or stop < begin:
            raise ValueError(f"{file.name} has a gap or an overlap at byte {begin}")
        end = stop
    if 8 + length + end != size:
        raise ValueError(f"{file.name} has {size} bytes; its header calls for {8 + length + end}")
    return len(header)


def _tokenizer(folder: Path, files: list[str]) -> Iterator[tuple[str, str]]:
    if "tokenizer.json" in files and importlib.util.find_spec("tokenizers"):
        tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(
            str(folder / "tokenizer.json")
        )
        tokens = tokenizer.encode("an air-gapped server").ids
        if not tokens:
            raise ValueError("it turns text into no tokens")
        yield "pass", f"tokenizers: {tokenizer.get_vocab_size()} tokens known"
    elif any(file.startswith("tokenizer") for file in files):
        if not importlib.util.find_spec("transformers"):
            yield "skip", "neither tokenizers nor transformers can read it here"
            return
        loader = importlib.import_module("transformers").AutoTokenizer
        tokenizer = loader.from_pretrained(str(folder), local_files_only=True)
        if not tokenizer("an air-gapped server")["input_ids"]:
            raise ValueError("it turns text into no tokens")
        yield "pass", f"transformers: {type(tokenizer).__name__}, {len(tokenizer)} tokens known"
    else:
        yield "skip", "it has no tokenizer"


def _by_id(
    repo: str, revisions: list[str], folder: Path, files: list[str]
) -> Iterator[tuple[str, str]]:
    if not importlib.util.find_spec("huggingface_hub"):
        yield "skip", "huggingface_hub is not in this environment"
        return
    hub = importlib.import_module("huggingface_hub")
    for revision in revisions:
        # Where none is named, the client looks for main.
        name = repo if revision == "main" else f"{repo} at {revision}"
        hub.snapshot_download(repo, revision=revision)
        for file in files:
            by_id = hub.try_to_load_from_cache(repo, file, revision=revision)
            if not isinstance(by_id, str):
                yield "fail", f"{file} is not found by the id {name}"
                return
            if not Path(by_id).samefile(folder / file):
                yield "fail", f"{file} by the id {name} is {by_id}, which is not {folder / file}"
                return
    yield "pass", f"huggingface_hub {hub.__version__} finds all of it as {', '.join(revisions)}"
