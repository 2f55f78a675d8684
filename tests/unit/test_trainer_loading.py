"""A bundled model through transformers: its class, its weights, a forward pass."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer import loading, models

TINY = Path(__file__).resolve().parents[2] / "manifests" / "tiny-llama"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "tiny"))


def looked(folder: Path) -> list[tuple[str, str]]:
    files = sorted(path.name for path in folder.iterdir())
    rows = list(models.looked("transformers", folder, "mirror/tiny-llama", ["main"], files))
    assert {name for name, _, _ in rows} == {"transformers"}
    return [(verdict, evidence) for _, verdict, evidence in rows]


def change(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**config, **values}), encoding="utf-8")


def test_a_small_model_loads_and_computes(tiny: Path) -> None:
    ((verdict, evidence),) = looked(tiny)
    assert verdict == "pass"
    assert evidence.startswith("LlamaForCausalLM, 106,816 parameters: a forward pass gives (1, 8,")


def test_a_large_model_is_laid_out_without_memory(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "SMALL", 1000)
    ((verdict, evidence),) = looked(tiny)
    assert (verdict, "every weight has its place (too large" in evidence) == ("pass", True)


@pytest.mark.parametrize("small", [2**30, 1000])
def test_weights_that_the_file_lacks_are_named(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(loading, "SMALL", small)
    weights = load_file(tiny / "model.safetensors")
    gone = weights.pop("model.norm.weight")
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    assert gone.numel()
    (first, evidence), *_ = looked(tiny)
    assert first == "warn"
    assert "model.norm.weight" in evidence


def test_weights_of_another_shape_fail(tiny: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    weights["model.norm.weight"] = torch.ones(7)
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    (verdict, evidence), *_ = looked(tiny)
    assert verdict == "fail"
    assert "model.norm.weight" in evidence or "mismatch" in evidence


def test_numbers_that_are_none_fail(tiny: Path) -> None:
    weights = load_file(tiny / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    assert looked(tiny)[0][0] == "fail"


def test_an_architecture_that_this_transformers_does_not_know_fails(tiny: Path) -> None:
    change(tiny, model_type="of-next-year", architectures=["OfNextYear"])
    (verdict, evidence), *_ = looked(tiny)
    assert verdict == "fail"
    assert "of-next-year" in evidence


def test_code_that_comes_with_the_model_is_loaded_as_its_manifest_trusts_it(tiny: Path) -> None:
    (tiny / "modeling_own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class Own(LlamaForCausalLM):\n    config_class = OwnConfig\n",
        encoding="utf-8",
    )
    own = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
    change(tiny, model_type="own", architectures=["Own"], auto_map=own)
    ((verdict, evidence),) = looked(tiny)
    assert (verdict, evidence.partition(",")[0]) == ("pass", "Own")


def test_code_of_its_own_may_compute_on_what_nobody_here_knows(tiny: Path) -> None:
    (tiny / "modeling_own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
        "class Own(LlamaForCausalLM):\n    config_class = OwnConfig\n"
        "    def forward(self, waves):\n        raise RuntimeError\n",
        encoding="utf-8",
    )
    own = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}
    change(tiny, model_type="own", architectures=["Own"], auto_map=own)
    ((verdict, evidence),) = looked(tiny)
    assert (verdict, "what it computes on is not known" in evidence) == ("pass", True)


def test_without_weights_or_config_nothing_is_tried(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    assert looked(tiny) == [("skip", "it has no weights of torch's")]
    (tiny / "config.json").unlink()
    assert looked(tiny)[0][0] == "skip"
