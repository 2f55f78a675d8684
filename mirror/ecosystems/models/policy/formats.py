"""The names by which the files of a repository are known: what each is, not where it comes from."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

#: One of these says what a repository is: of transformers, of diffusers, an adapter.
DESCRIPTIONS = ("config.json", "model_index.json", "adapter_config.json")
#: What from_pretrained looks for beside a description, where the repository has it.
COMPANIONS = frozenset(
    {
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.txt",
        "vocab.json",
        "vocab.bpe",
        "merges.txt",
        "spiece.model",
        "spm.model",
        "sentencepiece.bpe.model",
        "sentencepiece.model",
        "source.spm",
        "target.spm",
        "tekken.json",
        "chat_template.jinja",
        "chat_template.json",
        "preprocessor_config.json",
        "processor_config.json",
        "video_preprocessor_config.json",
        "modules.json",
    }
)
#: Other libraries' descriptions: sentence-transformers, open_clip, Mistral, spaCy, speechbrain.
_OTHER_DESCRIPTIONS = (
    "open_clip_config.json",
    "params.json",
    "configuration.json",
    "meta.json",
    "config.cfg",
    "*.yaml",
    "*.yml",
)
#: Weights that safetensors replace.
_REPLACED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack", ".ot")
#: Weights that hold their description, and are loaded by their path.
_WHOLE = (
    ".gguf",
    ".ggml",
    ".llamafile",
    ".onnx",
    ".tflite",
    ".keras",
    ".pb",
    ".engine",
    ".plan",
    ".nemo",
    ".mlmodel",
    ".pte",
    ".dduf",
    ".task",
)
_WEIGHTS = (
    ".safetensors",
    *_REPLACED,
    *_WHOLE,
    ".onnx_data",
    ".onnx.data",
    ".npz",
    ".pdparams",
    ".distcp",
)
#: The names that from_pretrained gives to weights: nothing loads them without a description.
_STANDARD = re.compile(
    r"(model.*\.safetensors"
    r"|(pytorch_model|tf_model|flax_model|diffusion_pytorch_model|adapter_model)\b.*"
    r"\.(safetensors|bin|h5|msgpack))$"
)
#: What a training leaves beside the weights, and vocabularies that are kept as pickles.
_STATES = ("training_args.bin", "optimizer.*", "scheduler.*", "scaler.*", "rng_state*")
_VOCABULARIES = ("vocab*", "tokenizer*")
_INDEX = re.compile(r"\.index(\.[\w-]+)?\.json$")
_PAPERS = re.compile(
    r"(readme|licen[cs]e|notice|changelog)\b.*|\.git\w*|(requirements.*|packages)\.txt", re.I
)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns covers a path, as the Hub's client understands them.

    `*` stands for any text, / too; a pattern that ends with / for all that is in the folder.
    """
    return any(fnmatchcase(path, _whole(pattern)) for pattern in patterns)


def is_weights(path: str) -> bool:
    """Whether a file of this name holds weights, in any format, or says where they are."""
    name = _stem(path)
    return name.endswith(_WEIGHTS) and not _is_vocabulary(name)


def is_state(path: str) -> bool:
    """Whether this is what a training needs to go on, and the model does not need."""
    return _any(posixpath.basename(path), _STATES)


def is_model(path: str) -> bool:
    """Whether a file of this name holds what a model computes with."""
    return is_weights(path) and not is_index(path) and not is_state(path)


def is_replaced(path: str, among: Collection[str]) -> bool:
    """Whether these are weights of a format for which safetensors can stand in.

    among: the paths of the repository: OpenVINO's model.bin belongs to its model.xml.
    """
    name = _stem(path)
    if f"{posixpath.splitext(path)[0]}.xml" in among:
        return False
    return name.endswith(_REPLACED) and not _is_vocabulary(name)


def is_whole(path: str) -> bool:
    """Whether this is a model in one file that needs no description."""
    name = posixpath.basename(path)
    return is_model(path) and (name.endswith(_WHOLE) or not _STANDARD.match(name))


def describes(path: str) -> bool:
    """Whether a file of this name says what a repository is, to whichever library."""
    name = posixpath.basename(path)
    return name in DESCRIPTIONS or _any(name, _OTHER_DESCRIPTIONS)


def is_index(path: str) -> bool:
    """Whether a file of this name says which shard holds which weight."""
    return bool(_INDEX.search(path))


def sharded(path: str) -> str:
    """The ending of the shards that an index of this name is about: ".safetensors"."""
    return posixpath.splitext(_stem(path))[1]


def is_code(path: str) -> bool:
    """Whether this is Python that a library would import. Notebooks are not: people run them."""
    return path.lower().endswith((".py", ".pyc"))


def is_paper(path: str) -> bool:
    """Whether this is there for people, or for the machinery of a Hub, only."""
    return bool(_PAPERS.fullmatch(posixpath.basename(path)))


def component(path: str, paths: Collection[str]) -> list[str]:
    """The folders from a file's own up to that of the component which it belongs to.

    A component has a description of its own; what is in none belongs to the root.
    """
    folders = [posixpath.dirname(path)]
    while folders[-1] and not any(f"{folders[-1]}/{name}" in paths for name in DESCRIPTIONS):
        folders.append(posixpath.dirname(folders[-1]))
    return folders


def _stem(path: str) -> str:
    """The file's name, of an index that of the weights which it is about."""
    return _INDEX.sub("", posixpath.basename(path)).lower()


def _is_vocabulary(name: str) -> bool:
    return _any(name, _VOCABULARIES) and name.endswith(_REPLACED)


def _any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _whole(pattern: str) -> str:
    pattern = pattern.replace("\\", "/")
    return f"{pattern}*" if pattern.endswith("/") else pattern
