"""Whether what is carried of models would load: told without loading it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.ecosystems.models.policy import completeness
from mirror.ecosystems.models.repository import Carried
from mirror.ecosystems.source import Context
from mirror.errors import ResolutionError, UsageError
from tests.asking import heard, make_context
from tests.carrying import a_carried, an_item

W = b"weights"
TRUST: dict[str, Any] = {"trust_remote_code": True}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


class Bundle:
    """Repositories that are carried together."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.carried: list[Carried] = []

    def add(self, files: Mapping[str, Any], **keys: Any) -> Bundle:
        """The bytes of those files alone can be read that `reads` names."""
        carried = a_carried(self.context.blobs, an_item(**keys), files)
        read = {a.path for file, a in carried.files.items() if completeness.reads(file)}
        places = {path: place for path, place in carried.places.items() if path in read}
        self.carried.append(replace(carried, places=places))
        return self

    def problems(self, kind: str = "models") -> tuple[str, ...]:
        """What is lacking."""
        try:
            completeness.check(kind, self.carried, self.context)
        except ResolutionError as error:
            return error.problems
        return ()

    def warnings(self) -> list[str]:
        assert self.problems() == ()
        return heard(self.context)


@pytest.fixture
def bundle(context: Context) -> Bundle:
    return Bundle(context)


def index_of(*shards: Any) -> dict[str, Any]:
    return {"weight_map": {f"w{n}": shard for n, shard in enumerate(shards)}}


# Shards


def test_every_shard_must_be_there(bundle: Bundle) -> None:
    shards = ("model-1-of-2.safetensors", "model-2-of-2.safetensors")
    whole = {
        "config.json": {},
        "model.safetensors.index.json": index_of(*shards, *shards),
        "pytorch_model.bin.index.fp16.json": index_of("./a.bin"),
        "a.bin": W,
        **dict.fromkeys(shards, W),
        "unet/diffusion.index.json": index_of("d.bin", "../a.bin"),
        "unet/d.bin": W,
    }
    bundle.add(whole, repo="org/whole")
    assert bundle.problems() == ()
    bundle.add(
        {k: v for k, v in whole.items() if k not in (shards[1], "unet/d.bin", "a.bin")},
        repo="org/cut",
    )
    assert bundle.problems() == (
        f"org/cut: model.safetensors.index.json asks for {shards[1]}, which is not carried",
        "org/cut: pytorch_model.bin.index.fp16.json asks for a.bin, which is not carried",
        "org/cut: unet/diffusion.index.json asks for a.bin, unet/d.bin, which are not carried",
    )


def test_many_shards_that_lack_are_told_in_short(bundle: Bundle) -> None:
    shards = [f"model-{n:02}.safetensors" for n in range(30)]
    bundle.add({"config.json": {}, "x.gguf": W, "m.safetensors.index.json": index_of(*shards)})
    (problem,) = bundle.problems()
    assert "model-07.safetensors, 22 more, which are" in problem
    assert "model-08" not in problem


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (index_of(1, None, ["x"], {"a": "b"}), "names shards that are no names"),
        (index_of("../../etc/passwd"), "asks for ../../etc/passwd, which is outside of the"),
        (index_of("/etc/passwd"), "asks for /etc/passwd, which is outside of the repository"),
        (index_of("..\\x"), "outside of the repository"),
        (index_of("x\x1b[2J"), "asks for x\\x1b[2J, which is not carried"),
        ([], "is no index of shards: it has no weight_map"),
        ({"weight_map": ["a"]}, "is no index of shards: it has no weight_map"),
        (b"[" * 500_000, "is no JSON"),
        (b'{"weight_map":', "is no JSON: Expecting value: line 1 column 15"),
        (b"\xff\xfe\xfa", "is no JSON"),
        (b"", "is no JSON"),
        (b"1" * 10_000, "is no JSON"),
        (b" " * (33 << 20), "is no JSON: it is too large"),
    ],
)
def test_an_index_that_is_none(bundle: Bundle, document: Any, words: str) -> None:
    name = "model.safetensors.index.json"
    bundle.add({"config.json": {}, "model.safetensors": W, name: document})
    (problem,) = bundle.problems()
    assert problem.startswith(f"org/tiny: {name} ")
    assert words in problem


def test_what_is_too_large_is_not_read(bundle: Bundle) -> None:
    bundle.add({"config.json": b" " * (33 << 20), "model.safetensors": W})
    bundle.carried = [replace(bundle.carried[0], places={})]
    assert bundle.problems() == ("org/tiny: config.json is no JSON: it is too large",)


def test_what_is_called_an_index_and_is_of_something_else(bundle: Bundle) -> None:
    bundle.add({"config.json": {}, "model.safetensors": W, "pages.index.json": {"a": 1}})
    assert bundle.problems() == ()


# Descriptions and weights


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": {}, "model.safetensors": W},
        {"a.Q4_K_M.gguf": W, "README.md": b""},
        {"model.onnx": W},
        {"onnx/model.onnx": W, "config.json": {}},
        {"lora.safetensors": W},
        {"pytorch_lora_weights.safetensors": W},
        {"open_clip_config.json": {}, "open_clip_pytorch_model.bin": W},
        {"params.json": {}, "consolidated.safetensors": W},
        {"parakeet.nemo": W},
        {"yolo.pt": W},
        {"hyperparams.yaml": b"", "embedding_model.ckpt": W},
        {"tokenizer.json": {}, "tokenizer_config.json": {}},
        {"0_Transformer/config.json": {}, "0_Transformer/model.safetensors": W, "modules.json": []},
        {"config.json": {}, "nested/model.safetensors": W},
    ],
)
def test_what_can_be_loaded(bundle: Bundle, files: dict[str, Any]) -> None:
    assert bundle.add(files).problems() == ()


def test_weights_without_a_description(bundle: Bundle) -> None:
    bundle.add({"model.safetensors": W, "README.md": b"", "tokenizer.json": {}}, repo="org/bare")
    bundle.add({"unet/pytorch_model.bin": W, "vae/config.json": {}}, repo="org/half")
    told = "and no description (config.json, model_index.json, adapter_config.json)"
    assert [problem.partition(told)[0] for problem in bundle.problems()] == [
        "org/bare has model.safetensors, ",
        "org/half has unet/pytorch_model.bin, ",
    ]


def test_plain_files_are_datasets(bundle: Bundle) -> None:
    bundle.add({"README.md": b"", "a.csv": b"1"})
    (problem,) = bundle.problems()
    assert "neither a description (config.json, model_index.json, adapter_config.json)" in problem
    assert "`datasets:`" in problem
    assert bundle.problems("datasets") == bundle.problems("spaces") == ()


@pytest.mark.parametrize("name", ["config.json", "adapter_config.json"])
def test_a_description_without_weights(bundle: Bundle, name: str) -> None:
    files = {name: {}, "training_args.bin": W, "tokenizer.json": {}}
    bundle.add(files, repo="org/a")
    bundle.add(files, repo="org/b", weights="none")
    assert bundle.problems() == (
        f"org/a has {name} and no weights: `weights: none` carries it without",
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "adapter_config.json"])
@pytest.mark.parametrize("data", [b"{", b"[1]", b"[" * 500_000, b"\x00", b'"x"', b"1" * 10_000])
def test_documents_that_are_none(bundle: Bundle, name: str, data: bytes) -> None:
    bundle.add({"config.json": {}, "model.safetensors": W, name: data})
    (problem,) = bundle.problems()
    assert problem.startswith(f"org/tiny: {name} ")


def test_odd_documents_that_load_all_the_same(bundle: Bundle) -> None:
    odd = b'{"a": NaN, "a": 1e999, "auto_map": null, "custom_pipelines": [1]}'
    bundle.add({"config.json": odd, "model.safetensors": W, "x/config.json": []}, **TRUST)
    assert bundle.problems() == ()


def test_deep_documents(bundle: Bundle) -> None:
    deep = b'{"auto_map": ' + b"[" * 700 + b'"odd"' + b"]" * 700 + b"}"
    bundle.add({"config.json": deep, "model.safetensors": W}, **TRUST)
    (problem,) = bundle.problems()
    assert "'odd', which is no module.Class" in problem


def test_a_document_that_cannot_be_read(context: Context) -> None:
    carried = a_carried(context.blobs, an_item(), {"config.json": {}, "model.safetensors": W})
    for place in carried.places.values():
        place.unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        completeness.check("models", [carried], context)


# Adapters

ADAPTER = {"adapter_config.json": {"base_model_name_or_path": "org/base"}, "adapter_model.bin": W}
BASE = {"config.json": {}, "model.safetensors": W}


def adapter(**config: Any) -> dict[str, Any]:
    return {**ADAPTER, "adapter_config.json": config}


def test_an_adapter_needs_its_base(bundle: Bundle) -> None:
    bundle.add(ADAPTER, repo="org/lora")
    (problem,) = bundle.problems()
    assert "org/lora is an adapter of org/base: add org/base to `models`" in problem
    assert "{path: ..., name: org/base}" in problem
    assert bundle.add(BASE, repo="org/base").warnings() == []


def test_an_adapter_needs_its_base_at_a_revision(bundle: Bundle) -> None:
    files = adapter(base_model_name_or_path="org/base", revision="v2")
    bundle.add(files, repo="org/lora")
    assert "add {repo: org/base, revision: v2} to" in bundle.problems()[0]
    bundle.add(BASE, repo="org/base")
    assert bundle.problems() == (
        "org/lora is an adapter of org/base at v2: add {repo: org/base, revision: v2} to `models`",
    )
    bundle.add(BASE, repo="org/base", revision="v2", default=False)
    assert bundle.problems() == ()


def test_an_adapter_of_main(bundle: Bundle) -> None:
    """Whatever loads without a revision is main on the server."""
    bundle.add(adapter(base_model_name_or_path="org/base", revision="main"), repo="org/lora")
    bundle.add(BASE, repo="org/base", revision="v1")
    assert bundle.problems() == ()


def test_an_adapter_of_a_commit(bundle: Bundle) -> None:
    base = Bundle(bundle.context).add(BASE, repo="org/base").carried[0]
    commit = base.artifacts[0].text("commit")
    bundle.add(adapter(base_model_name_or_path="org/base", revision=commit), repo="org/lora")
    assert len(bundle.problems()) == 1
    bundle.carried.append(base)
    assert bundle.problems() == ()


@pytest.mark.parametrize("base", ["/home/me/llama", "../llama", "C:\\models\\x", "a/b/c", "~/x"])
def test_an_adapter_of_a_folder(bundle: Bundle, base: str) -> None:
    bundle.add(adapter(base_model_name_or_path=base), repo="org/lora")
    (warning,) = bundle.warnings()
    assert base in warning
    assert "load the base model by its id" in warning


@pytest.mark.parametrize("config", [{}, {"base_model_name_or_path": None}, {"x": 1}])
def test_an_adapter_that_names_no_base(bundle: Bundle, config: dict[str, Any]) -> None:
    assert bundle.add(adapter(**config), repo="org/lora").warnings() == []


def test_adapters_further_down_are_told_only(bundle: Bundle) -> None:
    config = {"base_model_name_or_path": "TBD"}
    bundle.add({**BASE, "vision/adapter_config.json": config, "vision/adapter_model.bin": W})
    (warning,) = bundle.warnings()
    assert warning.endswith("vision/adapter_config.json is an adapter of TBD, which is not carried")


# Pipelines

PIPELINE = {
    "_class_name": "StableDiffusionPipeline",
    "unet": ["diffusers", "UNet2DConditionModel"],
    "scheduler": ["diffusers", "PNDMScheduler"],
    "image_encoder": [None, None],
    "requires_safety_checker": True,
}
PARTS = {
    "model_index.json": PIPELINE,
    "unet/config.json": {},
    "unet/diffusion_pytorch_model.safetensors": W,
    "scheduler/scheduler_config.json": {},
}


def test_every_component_must_be_there(bundle: Bundle) -> None:
    bundle.add(PARTS, repo="org/whole")
    assert bundle.problems() == ()
    cut = {file: data for file, data in PARTS.items() if not file.startswith(("sch", "unet/d"))}
    bundle.add(cut, repo="org/cut")
    bundle.add(cut, repo="org/light", weights="none", exclude=["scheduler/"])
    assert bundle.problems() == (
        "org/cut: unet of model_index.json has a config.json and no weights",
        "org/cut: model_index.json names scheduler, of which nothing is carried",
    )
    (warning,) = set(heard(bundle.context))
    assert warning.startswith("org/light: model_index.json names scheduler, which `exclude` leaves")


def test_modules_of_sentence_transformers(bundle: Bundle) -> None:
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
        {"path": 3},
        "odd",
    ]
    bundle.add({**BASE, "modules.json": modules}, repo="org/a")
    bundle.add({**BASE, "modules.json": modules, "1_Pooling/config.json": {}}, repo="org/b")
    assert bundle.problems() == (
        "org/a: modules.json names 1_Pooling, of which nothing is carried",
    )


# Code


def custom(*references: str, **files: Any) -> dict[str, Any]:
    """A model whose auto_map names these; keyword a__b is the file a/b.py."""
    code = {f"{name.replace('__', '/')}.py": text for name, text in files.items()}
    return {**BASE, "config.json": {"auto_map": dict(enumerate(references))}, **code}


def test_code_that_is_not_carried_is_told_once(bundle: Bundle) -> None:
    bundle.add(custom("modeling.M", "other/repo--x.X"), repo="org/a")
    bundle.add(custom("modeling.M"), repo="org/a", revision="v2", default=False)
    (warning,) = bundle.warnings()
    assert warning.startswith("org/a can be loaded with code of its own, which is not carried")


def test_code_needs_what_it_imports(bundle: Bundle) -> None:
    modeling = """
import torch
from .configuration import C
from transformers import (
    PreTrainedModel,
)
from .layers.attention import (
    Attention,
)
from . import utilities, missing_one
from ...transformers.utils import logging
try:
    from .flash import fast
except ImportError:
    pass
"""
    files = custom(
        "modeling.M",
        modeling=modeling,
        configuration="",
        layers__attention="from ..configuration import C\nfrom .core import *\n",
        layers__core="from .attention import Attention\nfrom ..gone import x\n",
        utilities="",
    )
    bundle.add(files, **TRUST)
    assert set(bundle.problems()) == {
        "org/tiny: modeling.py imports missing_one.py, which org/tiny does not carry",
        "org/tiny: modeling.py imports flash.py, which org/tiny does not carry",
        "org/tiny: layers/core.py imports gone.py, which org/tiny does not carry",
    }


def test_packages(bundle: Bundle) -> None:
    files = custom("m.M", m="from .sub import a\nfrom . import sub\n", sub____init__="")
    files["sub/__init__.py"] = "from . import *\nfrom . import a\n"
    assert bundle.add(files, **TRUST).problems() == ()


@pytest.mark.parametrize(
    "source",
    [
        "print 'Python 2'\nfrom .gone import x\n",
        "def new[T](x: T):\n    from .gone import x\n",
        "x = '\\d'\nfrom .gone import x\n",
        "(" * 5000 + "\nfrom .gone import x\n",
        b"\xff\0\nfrom .gone import x\n",
    ],
)
def test_code_of_any_python(bundle: Bundle, source: Any) -> None:
    bundle.add(custom("m.M", m=source), **TRUST)
    assert bundle.problems() == ("org/tiny: m.py imports gone.py, which org/tiny does not carry",)


def test_where_classes_are_named(bundle: Bundle) -> None:
    files = {
        "config.json": {"custom_pipelines": {"task": {"impl": "a.A", "pt": ["AutoModel"]}}},
        "tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["b.Slow", None]}},
        "preprocessor_config.json": {"auto_map": {"AutoImageProcessor": "c.C"}},
        "processor_config.json": {"auto_map": "d.D"},
        "vision/config.json": {"auto_map": {"AutoModel": "e.E"}},
        "vision/e.py": "from .f import F",
        "custom_generate/generate.py": "from .g import G",
        "model_index.json": {"_class_name": ["h", "H"]},
        "modules.json": [{"type": "i.I"}, {"type": "custom.J"}, {"type": "x/y--k.K"}, {"type": 1}],
        "i.py": "from . import l",
        "model.safetensors": W,
    }
    bundle.add(files, **TRUST)
    *lacking, other = bundle.problems()
    names = [problem.split(", which")[0].rpartition(" ")[2] for problem in lacking]
    expected = "custom_generate/g.py a.py b.py c.py d.py vision/f.py h.py l.py"
    assert names == expected.split()
    assert "modules.json loads code of x/y: add {repo: x/y," in other


def test_code_of_another_repository(bundle: Bundle) -> None:
    bundle.add(custom("org/code--m.M"), repo="org/a", **TRUST)
    asks = "org/a: config.json"
    add = f"{asks} loads code of org/code: add"
    assert bundle.problems() == (f"{add} {{repo: org/code, trust_remote_code: true}} to `models`",)
    code = {"README.md": b"", "m.py": "from .n import N", **BASE}
    without = Bundle(bundle.context)
    without.carried = [*bundle.carried]
    without.add(BASE, repo="org/code")
    assert without.problems() == (f"{add} `trust_remote_code: true` to org/code",)
    bundle.add(code, repo="org/code", **TRUST)
    assert bundle.problems() == ("org/code: m.py imports n.py, which org/code does not carry",)
    bundle.carried.pop()
    bundle.add({"README.md": b"", "x.py": ""}, repo="org/code", **TRUST)
    assert bundle.problems() == (f"{asks} names m.py, which org/code does not carry",)
    bundle.carried.pop()
    bundle.add({**code, "n.py": ""}, repo="org/code", **TRUST)
    bundle.add(BASE, repo="org/code", revision="v0", default=False, **TRUST)
    assert bundle.problems() == ()  # the one that loads without a revision counts


def test_code_of_the_repository_by_its_full_name(bundle: Bundle) -> None:
    assert bundle.add(custom("org/tiny--m.M", m=""), **TRUST).problems() == ()
    bundle.add(custom("org/b--m.M"), repo="org/b", **TRUST)
    assert bundle.problems() == ("org/b: config.json names m.py, which org/b does not carry",)


@pytest.mark.parametrize("reference", ["odd", "", "--", "a/b--", "../x.Y", "x y.Z", "m/../../q.Z"])
def test_references_that_are_none(bundle: Bundle, reference: str) -> None:
    bundle.add(custom(reference), **TRUST)
    (problem,) = bundle.problems()
    assert "which is no module.Class" in problem


def test_json_as_transformers_writes_it(bundle: Bundle) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "rope_scaling": {"factor": 8.0, "type": "llama3"},
        "transformers_version": "4.57.3",
    }
    index = {
        "metadata": {"total_size": 16060522496, "total_parameters": 8030261248},
        "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"},
    }
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    bundle.add(
        {
            "config.json": json.dumps(config, indent=2),
            "generation_config.json": {"eos_token_id": [1, 2]},
            "model.safetensors.index.json": text,
            "model-00002-of-00002.safetensors": W,
        }
    )
    assert bundle.warnings() == []
