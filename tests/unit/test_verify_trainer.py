"""The trainer's parts, in this process: its model, its task, its probe of models."""

from __future__ import annotations

import errno
import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader

from trainer import checkpoint, learner, model, models, options, pretrained, task
from trainer.options import TOLERANCES

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


def test_a_walk_has_none_of_the_reserved_tokens() -> None:
    reserved = frozenset(task.Walks(64, 10).cycle[:20])
    assert not reserved & set(task.Walks(64, 10, reserved=reserved).cycle)


def test_as_many_symbols_are_hidden_in_every_sample_but_not_the_same() -> None:
    walks = task.Walks(384, 50)
    hidden = [walks.hidden(n) for n in range(50)]
    assert {int(one.sum()) for one in hidden} == {task.HIDDEN}
    assert {one.shape for one in hidden} == {(task.LENGTH,)}
    assert not torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden[7], task.Walks(384, 60).hidden(7))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_are_the_same_whoever_makes_them(workers: int) -> None:
    walks = task.Walks(384, 12)
    loader = DataLoader(
        task.Samples(walks),
        batch_size=4,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    batches = list(loader)
    made_by = {worker for batch in batches for worker in batch["worker"].tolist()}
    assert made_by == (set(range(workers)) or {-1})
    for batch in batches:
        for number, tokens in zip(batch["number"].tolist(), batch["tokens"], strict=True):
            assert torch.equal(tokens, walks[number])


def test_every_precision_has_a_tolerance() -> None:
    assert set(TOLERANCES) == {"no", "bf16", "fp16"}


def test_the_digest_is_noted_wherever_another_run_must_be_held_against_it(tmp_path: Path) -> None:
    line = ["--out", str(tmp_path), "--steps", "40", "--save-after", "20"]

    def digests(*more: str) -> list[set[int]]:
        return [set(leg.digests) for leg in options.parse([*line, *more]).legs]

    assert digests() == [{20, 40}]
    assert digests("--kill-after", "22") == [{20, 22}]
    assert digests("--then-fsdp", "--kill-after", "22") == [{20, 40}, {20, 22}]
    assert digests("--then-fsdp", "--digest-after", "22") == [{20, 22, 40}] * 2
    with pytest.raises(SystemExit):
        options.parse([*line, "--batch", "7", "--accumulation", "2"])


def test_each_leg_goes_on_from_a_checkpoint_of_its_own(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    line = ["--out", str(second), "--resume", str(first), "--then-fsdp"]
    plain, sharded = options.parse(line).legs
    assert (plain.parallel, plain.folder) == ("ddp", second)
    assert plain.resume == first / "checkpoint"
    assert (sharded.parallel, sharded.folder) == ("fsdp", second / "fsdp")
    assert sharded.resume == first / "fsdp" / "checkpoint"


# -- which model is trained ----------------------------------------------------------------------


def chosen(folder: Path | None, *, largest: int = 10**6, trusted: bool = False) -> learner.Learner:
    return learner.choose(folder, largest, trusted, 0)


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A sentence encoder as they are bundled: BERT without a head, with dropout."""
    config = transformers.BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
    )
    torch.manual_seed(1)
    transformers.BertModel(config).save_pretrained(tmp_path / "encoder")
    return tmp_path / "encoder"


def batch_of(one: learner.Learner, size: int = 8) -> dict[str, torch.Tensor]:
    walks = task.Walks(one.vocabulary, size, reserved=one.reserved)
    whole: dict[str, torch.Tensor] = next(iter(DataLoader(task.Samples(walks), batch_size=size)))
    return whole


def learns(one: learner.Learner, steps: int = 12) -> tuple[float, float]:
    """The loss before and after so many steps on one batch."""
    optimizer = torch.optim.AdamW(one.module.parameters(), lr=one.learning_rate)
    one.module.train()
    batch, losses = batch_of(one), []
    for _ in range(steps):
        loss = one.loss(one.module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[0], losses[-1]


def test_a_bundled_decoder_is_trained_through_transformers(tiny: Path) -> None:
    one = chosen(tiny)
    assert one.described() == {
        "name": str(tiny),
        "class": "LlamaForCausalLM",
        "through": f"transformers {transformers.__version__}",
        "reason": "",
        "refused": False,
        "fresh": 0,
        "parameters": 106_816,
    }
    first, last = learns(one)
    assert last < 0.9 * first


def test_transformers_and_the_trainer_compute_the_same_from_the_same_files(tiny: Path) -> None:
    own = learner.Learner(model.bundled(tiny), "", 384, "the trainer")
    through = chosen(tiny)
    assert type(through.module).__name__ == "LlamaForCausalLM"
    batch = batch_of(own)
    ours, theirs = own.loss(own.module, batch), through.loss(through.module, batch)
    assert math.isclose(ours.item(), theirs.item(), abs_tol=1e-5)


def test_a_bundled_encoder_fills_gaps_with_a_head_that_is_seeded(encoder: Path) -> None:
    one, again = chosen(encoder), chosen(encoder)
    assert type(one.module).__name__ == "BertForMaskedLM"
    # The head: a layer of 32 x 32, its norm, and a bias a token; its weights are the embeddings'.
    assert one.fresh == 32 * 32 + 32 + 2 * 32 + 200
    assert one.gap is not None
    assert {0, one.gap} <= one.reserved  # 0 pads
    for name, tensor in one.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name]), name
    first, last = learns(one)
    assert last < 0.9 * first


def test_nothing_is_dropped_at_random(encoder: Path) -> None:
    one = chosen(encoder)
    one.module.train()
    batch = batch_of(one)
    assert one.loss(one.module, batch).item() == one.loss(one.module, batch).item()


def test_what_an_encoder_must_guess_is_not_shown_to_it(encoder: Path) -> None:
    one, given = chosen(encoder), {}

    def watched(**inputs: torch.Tensor) -> Any:
        given.update(inputs)
        return one.module(**inputs)

    batch = batch_of(one)
    one.loss(watched, batch)
    shown, hidden = given["input_ids"], batch["hidden"]
    assert set(shown[hidden].tolist()) == {one.gap}
    assert torch.equal(shown[~hidden], batch["tokens"][:, : task.LENGTH][~hidden])


def test_the_larger_a_model_the_slower_it_learns(tiny: Path) -> None:
    assert chosen(tiny).learning_rate == learner.LEARNING_RATE
    wide = learner.Learner(torch.nn.Linear(2000, 2000, bias=False), "", 1, "")
    assert wide.learning_rate == learner.LEARNING_RATE / 2


def test_without_transformers_the_trainer_holds_a_llama_itself(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    one = chosen(tiny)
    assert isinstance(one.module, model.TinyLM)
    assert (one.through, one.refused) == ("the trainer", False)
    assert one.reason == "transformers is not in this environment"


def test_a_model_that_transformers_refuses_is_told_with_its_words(encoder: Path) -> None:
    change_config(encoder, hidden_size=33)  # of four heads
    one = chosen(encoder)
    assert one.name == "built-in"
    assert one.refused
    assert "transformers fails on it (shapes): ValueError: The hidden size (33)" in one.reason
    assert "model_type is 'bert', not 'llama'" in one.reason


def test_weights_that_transformers_cannot_read_are_told(encoder: Path) -> None:
    weights = encoder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    one = chosen(encoder)
    assert one.refused
    assert "transformers fails on it (weights)" in one.reason


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "a decoder (t5)"),
        ({"model_type": "vit", "architectures": ["ViTModel"]}, "'vit' is no language model"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized"),
        ({"vocab_size": 200_000}, "parameters; at most 1,000,000 are trained"),
        ({"vocab_size": 30}, "leaves no 32 symbols"),
    ],
)
def test_a_model_that_is_not_trained_is_no_fault_of_transformers(
    encoder: Path, values: dict[str, Any], reason: str
) -> None:
    if "vocab_size" in values and values["vocab_size"] < 200:
        small = transformers.BertConfig.from_pretrained(encoder, **values)
        transformers.BertModel(small).save_pretrained(encoder)
    if "model_type" in values:
        (encoder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    else:
        change_config(encoder, **values)
    one = chosen(encoder)
    assert reason in one.reason
    assert (one.name, one.refused) == ("built-in", False)


OWN = """
from transformers import BertConfig, BertForMaskedLM


class OwnConfig(BertConfig):
    model_type = "own"


class OwnLM(BertForMaskedLM):
    config_class = OwnConfig
"""


def test_a_models_own_code_runs_only_where_it_is_trusted(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    (encoder / "own.py").write_text(OWN, encoding="utf-8")
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForMaskedLM": "own.OwnLM"}
    change_config(encoder, model_type="own", auto_map=own)
    trusted = chosen(encoder, trusted=True)
    assert (type(trusted.module).__name__, trusted.reason) == ("OwnLM", "")
    refused = chosen(encoder)
    assert refused.name == "built-in"
    assert refused.refused
    assert "transformers fails on it (config)" in refused.reason


def test_another_model_without_any_bundled_one() -> None:
    one = chosen(None)
    assert (one.name, one.reason, one.parameters) == ("built-in", "no model was named", 125_248)
    assert isinstance(pretrained.RefusedError(""), model.UnsupportedError)


# -- checkpoints ---------------------------------------------------------------------------------


class GatheredError(Exception):
    """As torch.distributed.checkpoint tells of what went wrong on some rank."""

    def __init__(self, failures: dict[int, Any]) -> None:
        super().__init__("CheckpointException ranks:dict_keys([1])")
        self.failures = failures


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        GatheredError({1: (OSError(errno.ENOSPC, "No space left on device"), None)}),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_told_however_a_library_says_it(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Accelerator:
        """Of which nothing is needed but that it cannot save."""

        def save_state(self, folder: str) -> None:
            raise error

    progress = checkpoint.Progress(20, [1.0], "", 2)
    with pytest.raises(checkpoint.CheckpointError) as told:
        checkpoint.save(Accelerator(), tmp_path / "checkpoint", progress, 10**6)
    text = str(told.value)
    assert text.startswith(f"the checkpoint cannot be written to {tmp_path / 'checkpoint'}: ")
    assert "No space left on device" in text
    assert "takes about 11.4 MiB" in text
    assert "Make room there" in text
    assert not (tmp_path / "checkpoint").exists()


def test_a_checkpoint_that_was_not_finished_is_none(tmp_path: Path) -> None:
    with pytest.raises(checkpoint.CheckpointError, match="no whole checkpoint"):
        checkpoint.read_progress(tmp_path)
    (tmp_path / "progress.json").write_text('{"steps": 1}', encoding="utf-8")
    with pytest.raises(checkpoint.CheckpointError, match="no whole checkpoint"):
        checkpoint.read_progress(tmp_path)


def test_the_digest_knows_every_bit() -> None:
    lm = model.built_in()
    before = checkpoint.digest(lm, lm)
    assert before == checkpoint.digest(model.built_in(), lm)
    with torch.no_grad():
        lm.lm_head.weight[3, 4] = -lm.lm_head.weight[3, 4]
    assert checkpoint.digest(lm, lm) != before


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
