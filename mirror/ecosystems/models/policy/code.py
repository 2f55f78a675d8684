"""Python code that a repository brings: which modules its loading runs, and whether all are there.

Nothing of it is run: imports are read from its syntax.
"""

from __future__ import annotations

import ast
import posixpath
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.ecosystems.models.policy.documents import Documents

#: Files whose auto_map names classes of the repository's own code.
_CONFIGS = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "image_processor_config.json",
    "video_preprocessor_config.json",
    "feature_extractor_config.json",
    "generation_config.json",
)
#: What `generate` runs when a model brings its own.
_GENERATE = "custom_generate/generate.py"
# As transformers looks for imports, for code that is too new, or too old, for this Python.
_IMPORT = re.compile(r"^\s*from\s+\.(\w[\w.]*)\s+import\b", re.MULTILINE)


def reads(file: str) -> bool:
    """Whether `missing` or `references` read a file of this name."""
    return file.endswith(".py") or posixpath.basename(file) in _CONFIGS


def references(one: Documents) -> Iterator[tuple[str, str]]:
    """Each file of the repository that names a class of code, and the class.

    "module.Class", or "other/repo--module.Class" of another repository.
    """
    for file in one.files:
        if posixpath.basename(file) in _CONFIGS:
            config = one.mapping(file)
            pipelines = config.get("custom_pipelines")
            own = pipelines.values() if isinstance(pipelines, Mapping) else ()
            named = [p.get("impl") for p in own if isinstance(p, Mapping)]
            for text in _texts([config.get("auto_map"), named]):
                yield file, text
    pipeline = one.mapping("model_index.json").get("_class_name")
    if isinstance(pipeline, list) and pipeline:
        yield "model_index.json", ".".join(_texts(pipeline))
    modules = one.json("modules.json")
    for module in modules if isinstance(modules, list) else ():
        kind = module.get("type") if isinstance(module, Mapping) else None
        # Another name is that of an installed package's class.
        if isinstance(kind, str) and ("--" in kind or _file(kind) in one.files):
            yield "modules.json", kind


def missing(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """What the code of a repository needs and is not carried, a line each.

    among: all repositories of the bundle that code can be loaded from.
    """
    if _GENERATE in one.files:
        yield from _incomplete(one, _GENERATE, one.label)
    for file, reference in references(one):
        asks = f"{one.label}: {shown(file)}"
        repo, _, name = reference.rpartition("--")
        path = _file(name)
        if not path:
            yield f"{asks} names {shown(repr(reference))}, which is no module.Class"
        elif not repo or repo == one.item.id:
            beside = posixpath.join(posixpath.dirname(file), path)
            yield from _incomplete(one, beside if beside in one.files else path, asks)
        elif not (there := [other for other in among if other.item.id == repo]):
            item = f"{{repo: {shown(repo)}, trust_remote_code: true}}"
            yield f"{asks} loads code of {shown(repo)}: add {item} to `models`"
        else:
            other = next((other for other in there if other.item.default), there[0])
            if other.item.trust_remote_code:
                yield from _incomplete(other, path, asks)
            else:
                yield f"{asks} loads code of {repo}: add `trust_remote_code: true` to {repo}"


def _incomplete(one: Documents, path: str, asks: str) -> Iterator[str]:
    """The module, and those that it imports from beside it, as far as they are not carried."""
    wanted = [(path, f"{asks} names")]
    seen: set[str] = set()
    while wanted:
        path, asks = wanted.pop()
        if path in seen:
            continue
        seen.add(path)
        if path not in one.files:
            yield f"{asks} {shown(path)}, which {one.label} does not carry"
            continue
        for candidates in _imports(path, one.bytes(path)):
            found = next((c for c in candidates if c in one.files), candidates[0])
            wanted.append((found, f"{one.label}: {shown(path)} imports"))


def _imports(path: str, source: bytes) -> Iterator[Sequence[str]]:
    """For each relative import of a module the files of which one must be there."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the style of other people's code
            nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = [
            ast.ImportFrom(name, [ast.alias("*")], 1)
            for name in _IMPORT.findall(source.decode("utf-8", "replace"))
        ]
    for node in nodes:
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        above = posixpath.dirname(path)
        for _ in range(node.level - 1):
            above = posixpath.normpath(posixpath.join(above, ".."))
        if above.startswith(".."):
            continue  # what it imports is no part of any repository
        for name in [node.module] if node.module else [alias.name for alias in node.names]:
            base = posixpath.normpath(posixpath.join(above, name.replace(".", "/")))
            package = posixpath.normpath(posixpath.join(above, "__init__.py"))
            own = [] if name == "*" else [f"{base}.py", f"{base}/__init__.py"]
            yield [*own, *([] if node.module else [package])]


def _file(reference: str) -> str:
    """The file of "module.Class"; empty where this is none."""
    module, _, name = reference.rpartition("--")[2].rpartition(".")
    path = f"{module.replace('.', '/')}.py"
    return path if name and all(part.isidentifier() for part in module.split(".")) else ""


def _texts(value: Json) -> Iterator[str]:
    """Every text in lists and objects of any depth."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += reversed(list(value.values()))
        elif isinstance(value, Sequence):
            waiting += reversed(value)
