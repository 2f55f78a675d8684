"""Which files of a repository are carried."""

from __future__ import annotations

from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects  # type: ignore[attr-defined]

from mirror.ecosystems.models.policy import formats, selection
from mirror.ecosystems.models.repository import File
from mirror.errors import ResolutionError
from tests.carrying import an_item

TOKENIZER = "tokenizer.json tokenizer_config.json special_tokens_map.json vocab.txt"
BERT = f"""README.md .gitattributes config.json {TOKENIZER} model.safetensors pytorch_model.bin
tf_model.h5 flax_model.msgpack rust_model.ot onnx/model.onnx openvino/openvino_model.xml
openvino/openvino_model.bin"""
SHARDS = """config.json tokenizer.model model-1.safetensors model-2.safetensors
model.safetensors.index.json pytorch_model-1.bin pytorch_model.bin.index.json
original/consolidated.00.pth original/params.json original/tokenizer.model"""
DIFFUSION = """model_index.json v1-5.ckpt scheduler/scheduler_config.json tokenizer/vocab.json
tokenizer/merges.txt unet/config.json unet/diffusion_pytorch_model.safetensors
unet/diffusion_pytorch_model.bin safety_checker/config.json safety_checker/pytorch_model.bin"""

OTHER_FORMATS = "other formats where safetensors stand (`weights: all` carries them)"


def choose(files: str, kind: str = "models", **keys: Any) -> selection.Chosen:
    listed = [File(path, 1_000_000, sha256="0" * 64) for path in files.split()]
    return selection.choose(kind, an_item(**keys), listed)


def left_out(files: str, kind: str = "models", **keys: Any) -> set[str]:
    """The paths that are not carried."""
    return set(files.split()) - {file.path for file in choose(files, kind, **keys).files}


def error(files: str, kind: str = "models", **keys: Any) -> ResolutionError:
    with pytest.raises(ResolutionError) as caught:
        choose(files, kind, **keys)
    return caught.value


# Weights


def test_safetensors_replace_other_formats() -> None:
    assert left_out(BERT) == {
        "pytorch_model.bin",
        "tf_model.h5",
        "flax_model.msgpack",
        "rust_model.ot",
    }
    (remark,) = choose(BERT).remarks
    assert remark == f"4 files left out, 4.00 MB: {OTHER_FORMATS}"
    assert left_out(BERT, weights="all") == left_out(BERT, "datasets") == set()
    assert choose(BERT, weights="all").remarks == ()
    assert left_out(BERT, "datasets", weights="safetensors") == left_out(BERT)
    assert left_out(SHARDS) == {
        "pytorch_model-1.bin",
        "pytorch_model.bin.index.json",
        "original/consolidated.00.pth",
    }


def test_where_there_are_no_safetensors_others_stay() -> None:
    assert left_out("config.json pytorch_model.bin tf_model.h5") == set()
    assert left_out(BERT, exclude=["*.safetensors"]) == {"model.safetensors"}


def test_each_component_of_a_pipeline_counts_alone() -> None:
    assert left_out(DIFFUSION) == {"unet/diffusion_pytorch_model.bin"}


def test_safetensors_further_down_replace_nothing_above() -> None:
    files = """config.json pytorch_model.bin lora/adapter_model.safetensors
    lora/adapter_config.json lora/adapter_model.bin other/adapter_config.json other/a.bin"""
    assert left_out(files) == {"lora/adapter_model.bin"}
    assert left_out(f"{files} model.safetensors") == {"lora/adapter_model.bin", "pytorch_model.bin"}


def test_the_state_of_a_training() -> None:
    files = "config.json model.safetensors optimizer.pt rng_state_0.pth x.pt trainer_state.json"
    assert choose(files).remarks == (
        "2 files left out, 2.00 MB: the state of a training (`weights: all` carries it)",
        f"1 file left out, 1.00 MB: {OTHER_FORMATS}",
    )


def test_vocabularies_are_no_weights() -> None:
    files = "config.json model.safetensors vocab.bin tokenizer.pkl training_args.bin"
    assert left_out(files) == {"training_args.bin"}
    assert left_out(files, weights="none") == {"training_args.bin", "model.safetensors"}


def test_no_weights_of_any_format() -> None:
    files = f"""{SHARDS} a.gguf b.onnx c.onnx_data d.tflite e.h5 unet/f.safetensors
    g.safetensors.index.fp16.json"""
    kept = set(files.split()) - left_out(files, weights="none")
    assert kept == {
        "config.json",
        "tokenizer.model",
        "original/params.json",
        "original/tokenizer.model",
    }
    (remark,) = choose(files, weights="none").remarks
    assert remark == "13 files left out, 13.0 MB: `weights: none`"


def test_lists_of_shards_go_with_the_shards() -> None:
    """from_pretrained would follow a list, whatever else is there."""
    only = ["*.safetensors", "*.json", "tokenizer*"]
    gone = {"pytorch_model-1.bin", "pytorch_model.bin.index.json", "original/consolidated.00.pth"}
    assert left_out(SHARDS, include=only) == gone | {"original/tokenizer.model"}
    assert "lists of shards" in choose(SHARDS, include=only).remarks[0]
    assert left_out(SHARDS, include=["*.bin", "*.json", "*.model"]) == {
        "model-1.safetensors",
        "model-2.safetensors",
        "model.safetensors.index.json",
        "original/consolidated.00.pth",
    }
    # What the repository itself lacks is for completeness to tell.
    assert left_out("config.json model.safetensors.index.json", weights="all") == set()


# Patterns


@pytest.mark.parametrize(
    "pattern",
    [
        *("*.json", "onnx/*", "onnx/", "o", "*", "model.safetensors", "[!a-m]*", "?odel.*"),
        *("*_model.bin", "README", "/README.md"),
    ],
)
def test_patterns_mean_what_they_mean_to_the_hub(pattern: str) -> None:
    theirs = set(filter_repo_objects(BERT.split(), allow_patterns=[pattern]))
    assert {path for path in BERT.split() if formats.matches(path, [pattern])} == theirs


def test_patterns_may_be_written_as_windows_writes_paths() -> None:
    assert formats.matches("a/b.json", ["a\\*.json"])


def test_exclude_wins_over_include() -> None:
    files = "a/x.csv a/y.csv b/x.csv"
    assert left_out(files, "datasets", include=["a/"], exclude=["*/y.csv"]) == {
        "a/y.csv",
        "b/x.csv",
    }
    assert choose(files, "datasets", include=["a/"]).remarks == ()


def test_a_pattern_without_a_file_is_told() -> None:
    doubts = choose("a.csv", "datasets", include=["a*", "tokeniser*"], exclude=["x"]).doubts
    assert doubts == (
        "`include`: tokeniser* matches no file: is it misspelt?",
        "`exclude`: x matches no file: is it misspelt?",
    )


def test_nothing_is_left() -> None:
    assert error(BERT, include=["x"]).message == "org/tiny: `include` left none of 15 files"
    assert "`exclude` left none" in error(BERT, exclude=["*"]).message
    both = error(BERT, include=["onnx/"], exclude=["onnx/*"]).message
    assert "`include` and `exclude` left none" in both
    assert error("", "datasets").message == "org/tiny has no files"


# Code

CUSTOM = "config.json model.safetensors modeling.py sub/more.PY cached.pyc notes.ipynb"


def test_code_needs_trust() -> None:
    for kind in ("models", "datasets", "spaces"):
        assert left_out(CUSTOM, kind) == {"modeling.py", "sub/more.PY", "cached.pyc"}
        assert left_out(CUSTOM, kind, trust_remote_code=True) == {"cached.pyc"}
    assert choose(CUSTOM).remarks == (
        "2 files left out, 2.00 MB: Python code (`trust_remote_code: true` carries it)",
    )


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("spaces", "app.py README.md .gitattributes requirements.txt"),
        ("datasets", "loading.py"),
        ("models", "modeling.py LICENSE"),
    ],
)
def test_a_repository_of_code_alone(kind: str, files: str) -> None:
    assert "`trust_remote_code: true` only" in error(files, kind).message
    assert left_out(files, kind, trust_remote_code=True) == set()


def test_code_that_include_names() -> None:
    found = error(CUSTOM, include=["config.json", "*.safetensors", "modeling.py"])
    assert found.problems == ("modeling.py",)
    assert "trust_remote_code" in found.message
    assert left_out(CUSTOM, include=["*"]) == {"modeling.py", "sub/more.PY", "cached.pyc"}


# What loading needs


def test_what_include_forgets() -> None:
    found = error(BERT, include=["*.safetensors"])
    assert found.problems == ("config.json", *sorted(TOKENIZER.split()))
    assert "`include`" in str(found.hint)
    assert error(BERT, include=["*.safetensors", "*.json"]).problems == ("vocab.txt",)
    assert error(BERT, include=["tokenizer*"]).problems == (
        "config.json",
        "special_tokens_map.json",
        "vocab.txt",
    )
    assert left_out(BERT, include=["*.safetensors", "*.json", "*.txt"]) > {"pytorch_model.bin"}
    left_out(BERT, include=["*.safetensors", "*.json"], exclude=["vocab.txt"])  # on purpose
    left_out(BERT, "datasets", include=["*.safetensors"])


def test_exclude_is_deliberate() -> None:
    assert "config.json" in left_out(BERT, exclude=["config.json", "vocab*"])


def test_components_need_their_own() -> None:
    unet = "unet/diffusion_pytorch_model.safetensors"
    assert error(DIFFUSION, include=[unet]).problems == ("unet/config.json",)
    assert len(left_out(DIFFUSION, include=["unet/"])) == 7
    assert error(DIFFUSION, include=["*.safetensors", "*.bin", "*/*.json"]).problems == (
        "model_index.json",
        "tokenizer/merges.txt",
    )


def test_a_model_in_one_file_needs_nothing() -> None:
    files = "config.json tokenizer.json model-Q4.gguf model-Q8.gguf lora.safetensors onnx/m.onnx"
    for pattern in ("*Q4.gguf", "lora.safetensors", "onnx/"):
        assert len(left_out(files, include=[pattern])) == 5


def test_code_alone_can_be_included() -> None:
    assert len(left_out(CUSTOM, include=["*.py"], trust_remote_code=True)) == 5


# What a trainer leaves

RUN = """config.json model.safetensors checkpoint-5/config.json checkpoint-5/model.safetensors
checkpoint-10/config.json checkpoint-10/model.safetensors checkpoint-10/optimizer.pt"""


def test_checkpoints_beside_the_model() -> None:
    assert left_out(RUN, path="run7") == {
        path for path in RUN.split() if path.startswith("checkpoint-")
    }
    (remark,) = choose(RUN, path="run7").remarks
    assert remark.startswith("5 files left out, 5.00 MB: checkpoints on the way")
    assert left_out(RUN) == {"checkpoint-10/optimizer.pt"}  # a Hub's repository
    kept = set(RUN.split()) - left_out(RUN, path="run7", include=["checkpoint-5/"])
    assert kept == {"checkpoint-5/config.json", "checkpoint-5/model.safetensors"}


def test_checkpoints_without_the_model() -> None:
    only = " ".join(path for path in RUN.split() if "/" in path) + " checkpoint-20/optimizer.pt"
    found = error(only, path="runs/7/")
    assert "no model of its own" in found.message
    assert "path: runs/7/checkpoint-10" in str(found.hint)
    assert left_out(only, "datasets", path="run7") == set()
