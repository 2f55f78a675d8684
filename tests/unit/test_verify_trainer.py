"""The trainer's parts, in this process: its model, its task, its probe of models."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer import model, models, task
from trainer.train import TOLERANCES

CHECKOUT = Path(__file__).resolve().parents[2]
TINY = CHECKOUT / "manifests" / "tiny-llama"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return shutil.copytree(TINY, tmp_path / "tiny")


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(table | values), encoding="utf-8")


def test_the_committed_model_loads_with_every_weight(tiny: Path) -> None:
    lm = model.bundled(tiny)
    assert sum(p.numel() for p in lm.parameters()) == lm.config.parameters
    weights = load_file(tiny / "model.safetensors")
    assert torch.equal(lm.model.embed_tokens.weight, weights["model.embed_tokens.weight"])
    assert lm(torch.zeros(2, 5, dtype=torch.long)).shape == (2, 5, lm.config.vocab_size)


def test_a_token_does_not_see_those_after_it() -> None:
    lm = model.built_in()
    tokens = torch.randint(0, 256, (1, 12), generator=torch.Generator().manual_seed(1))
    changed = tokens.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 256
    before, after = lm(tokens), lm(changed)
    assert torch.equal(before[0, :8], after[0, :8])
    assert not torch.equal(before[0, 8:], after[0, 8:])


def test_the_built_in_model_is_the_same_every_time_and_as_large_as_it_says() -> None:
    first, second = model.built_in(), model.built_in()
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert sum(p.numel() for p in first.parameters()) == first.config.parameters


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "bert"}, "model_type is 'bert'"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_type"),
        ({"vocab_size": 10_000_000}, "at most 50,000,000"),
        ({"num_attention_heads": None}, "incomplete"),
    ],
)
def test_a_model_that_the_trainer_cannot_hold_is_told_with_the_reason(
    tiny: Path, values: dict[str, Any], reason: str
) -> None:
    change_config(tiny, **values)
    with pytest.raises(model.UnsupportedError, match=reason):
        model.bundled(tiny)


def test_weights_that_do_not_fit_their_config_are_an_error_that_names_them(tiny: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    weights["extra"] = weights.pop("model.norm.weight")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:-1].clone()
    save_file(weights, tiny / "model.safetensors")
    with pytest.raises(ValueError, match=r"norm.weight is missing; extra is unknown; .* has shape"):
        model.bundled(tiny)


def test_shards_are_put_together(tiny: Path) -> None:
    whole = model.bundled(tiny)
    weights = load_file(tiny / "model.safetensors")
    names = sorted(weights)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file({name: weights[name] for name in held}, tiny / file)
    listing = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (tiny / "model.safetensors.index.json").write_text(json.dumps(listing), encoding="utf-8")
    (tiny / "model.safetensors").unlink()
    again = model.bundled(tiny)
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_task_is_a_function_of_seed_and_number() -> None:
    first, again = task.Walks(384, 50), task.Walks(384, 60)
    assert all(torch.equal(first[n], again[n]) for n in range(50))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], task.Walks(384, 50, seed=1)[0])
    assert first[0].shape == (task.LENGTH + 1,)
    # Whoever changes the corpus changes what old reports can be compared with: on purpose only.
    assert first[0][:6].tolist() == [75, 158, 50, 373, 37, 350]


def test_most_symbols_follow_from_the_one_before() -> None:
    walks = task.Walks(384, 100)
    after = dict(zip(walks.cycle, walks.cycle[1:] + walks.cycle[:1], strict=True))
    pairs = [(a, b) for n in range(100) for a, b in walks[n].unfold(0, 2, 1).tolist()]
    share = sum(after[a] == b for a, b in pairs) / len(pairs)
    assert 0.8 < share < 0.95


def test_every_precision_has_a_tolerance() -> None:
    assert set(TOLERANCES) == {"no", "bf16", "fp16"}


# -- the probe of models -------------------------------------------------------------------------


def looked(look: str, folder: Path) -> list[models.Found]:
    """One look of the probe at a folder, with every file in it expected."""
    files = sorted(path.name for path in TINY.iterdir())
    return list(models.looked(look, folder, "mirror/tiny-llama", ["main"], files))


def test_a_whole_model_passes(tiny: Path) -> None:
    for look in ("files", "config", "weights", "tokenizer"):
        assert [verdict for _, verdict, _ in looked(look, tiny)] == ["pass"]


def test_a_missing_file_is_named(tiny: Path) -> None:
    (tiny / "tokenizer.json").unlink()
    ((_, verdict, evidence),) = looked("files", tiny)
    assert verdict == "fail"
    assert evidence.endswith("lacks tokenizer.json")


@pytest.mark.parametrize(
    ("look", "file"),
    [("config", "config.json"), ("weights", "model.safetensors"), ("tokenizer", "tokenizer.json")],
)
def test_a_damaged_file_fails_its_look(tiny: Path, look: str, file: str) -> None:
    data = (tiny / file).read_bytes()
    (tiny / file).write_bytes(data[: len(data) // 2])
    ((_, verdict, evidence),) = looked(look, tiny)
    assert verdict == "fail"
    assert evidence


def test_weights_are_checked_by_their_header_where_there_is_no_torch(tmp_path: Path) -> None:
    def write(tensors: dict[str, Any], data: bytes) -> Path:
        header = json.dumps(tensors).encode()
        file = tmp_path / "m.safetensors"
        file.write_bytes(struct.pack("<Q", len(header)) + header + data)
        return file

    one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    other = {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}
    metadata = {"format": "pt"}
    assert models.count_by_header(write({"__metadata__": metadata, "a": one, "b": other}, b"8" * 8))
    with pytest.raises(ValueError, match="calls for"):
        models.count_by_header(write({"a": one, "b": other}, b"7" * 7))
    with pytest.raises(ValueError, match="gap or an overlap at byte 4"):
        models.count_by_header(write({"b": other}, b"8" * 8))


def test_run_by_path_the_package_stands_alone(tmp_path: Path) -> None:
    """No module of its folder stands in for one of the environment, wherever the folder lies."""
    folder = shutil.copytree(
        CHECKOUT / "trainer", tmp_path / "x", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "json.py").write_text("raise SystemExit('taken for the real one')", encoding="utf-8")
    answer = tmp_path / "answer.json"
    line = [sys.executable, str(folder / "__main__.py"), "packages", "--out", str(answer)]
    subprocess.run(line, check=True, cwd=folder, env={})
    packages = json.loads(answer.read_text(encoding="utf-8"))["packages"]
    assert packages["torch"] == torch.__version__
    done = subprocess.run([*line[:2], "dance"], capture_output=True, check=False, env={})
    assert (done.returncode, done.stderr) == (2, b"trainer: no such command: dance\n")
