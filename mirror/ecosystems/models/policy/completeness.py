"""Whether what is carried of models would load on the server.

Datasets and spaces are loaded in too many ways for rules of their own.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from mirror.core.paths import shown
from mirror.ecosystems.models.policy import code, formats
from mirror.ecosystems.models.policy.documents import Documents, is_id
from mirror.ecosystems.models.policy.formats import COMPANIONS, DESCRIPTIONS
from mirror.ecosystems.models.repository import Carried
from mirror.ecosystems.source import Context
from mirror.errors import ResolutionError

_ADAPTER = "adapter_config.json"
_PIPELINE = "model_index.json"
_MODULES = "modules.json"
#: So many missing shards of one index are named.
_NAMED = 8


def reads(file: str) -> bool:
    """Whether `check` reads a file of this name: its bytes have to be on this machine then."""
    known = posixpath.basename(file) in (_ADAPTER, _PIPELINE, _MODULES)
    return known or formats.is_index(file) or code.reads(file)


def check(kind: str, carried: Sequence[Carried], context: Context) -> None:
    """Warn of what may not load, and raise ResolutionError that names everything which is lacking.

    Raises UsageError when a file cannot be read.
    """
    if kind != "models":
        return
    among = [Documents(one) for one in carried]
    problems = [line for one in among for rule in _RULES for line in rule(one, among)]
    notes = [line for one in among for line in _notes(one, among)]
    problems += [line for one in among for line in one.problems]
    for line in dict.fromkeys(notes):
        context.progress.warn(line)
    if problems:
        raise ResolutionError(
            f"{kind} are incomplete: they would not load on the server",
            problems=dict.fromkeys(problems),
            hint="`include` or `exclude` may leave out what is missing. Where the repository itself"
            " lacks it, choose another revision.",
        )


def _description(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """Something must say what a model is, before anything can load it."""
    described = {posixpath.dirname(file) for file in one.files if formats.describes(file)}
    bare = [
        file
        for file in one.files
        if formats.is_model(file)
        and not formats.is_whole(file)
        and not described.intersection(_folders(file))
    ]
    if bare:
        yield (
            f"{one.label} has {_few(bare)}, and no description ({', '.join(DESCRIPTIONS)}):"
            " nothing could load it by its id (plain files belong under `datasets:`)"
        )
    elif not described and not any(
        formats.is_whole(file) or formats.is_code(file) or posixpath.basename(file) in COMPANIONS
        for file in one.files
    ):
        yield (
            f"{one.label} has neither a description ({', '.join(DESCRIPTIONS)}) nor weights: plain"
            " files belong under `datasets:`"
        )


def _weights(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """A description without weights loads nothing, unless the manifest says that it is meant so."""
    if one.item.weights == "none":
        return
    for name in ("config.json", _ADAPTER):
        if name in one.files and not any(map(formats.is_model, one.files)):
            yield f"{one.label} has {name} and no weights: `weights: none` carries it without"
            return


def _shards(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """Every shard that an index names."""
    for index in filter(formats.is_index, one.files):
        document = one.json(index)
        shards = document.get("weight_map") if isinstance(document, Mapping) else None
        where = f"{one.label}: {shown(index)}"
        if not isinstance(shards, Mapping):
            if document is not None and formats.is_weights(index):
                yield f"{where} is no index of shards: it has no weight_map"
            continue
        files = {shard for shard in shards.values() if isinstance(shard, str)}
        if any(not isinstance(shard, str) for shard in shards.values()):
            yield f"{where} names shards that are no names"
        paths = {posixpath.normpath(posixpath.join(posixpath.dirname(index), f)) for f in files}
        if outside := [path for path in paths if path.startswith(("/", "..")) or "\\" in path]:
            yield f"{where} asks for {_few(outside)}, which is outside of the repository"
        if lacking := paths - set(one.files) - set(outside):
            yield f"{where} asks for {_few(lacking)}, which {_is_or_are(lacking)} not carried"


def _base(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """The model that an adapter adapts."""
    base, revision = _adapts(one, _ADAPTER)
    if not base or not is_id(base) or base == one.item.id:
        return
    there = [other for other in among if other.item.id == base]
    if not there:
        item = f"{{repo: {base}, revision: {shown(revision)}}}" if revision else base
        yield (
            f"{one.label} is an adapter of {base}: add {item} to `models` (or"
            f" {{path: ..., name: {base}}}, where that is a folder)"
        )
    elif revision and not any(
        other.item.revision == revision or other.commit.startswith(revision) for other in there
    ):
        yield (
            f"{one.label} is an adapter of {base} at {shown(revision)}: add"
            f" {{repo: {base}, revision: {shown(revision)}}} to `models`"
        )


def _pipeline(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """The components of a pipeline of diffusers."""
    for name in _components(one):
        files = [file for file in one.files if file.startswith(f"{name}/")]
        if not files and not _is_excluded(one, name):
            yield f"{one.label}: {_PIPELINE} names {shown(name)}, of which nothing is carried"
        elif (
            f"{name}/config.json" in files
            and not any(map(formats.is_model, files))
            and one.item.weights != "none"
        ):
            yield f"{one.label}: {shown(name)} of {_PIPELINE} has a config.json and no weights"


def _modules(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """The modules of a model of sentence-transformers."""
    modules = one.json(_MODULES)
    for module in modules if isinstance(modules, list) else ():
        if not isinstance(module, Mapping):
            continue
        path, kind = module.get("path"), module.get("type")
        if not isinstance(path, str) or not path or str(kind).endswith("Normalize"):
            continue  # at the root, or without any files
        if not any(file.startswith(f"{path}/") for file in one.files):
            yield f"{one.label}: {_MODULES} names {shown(path)}, of which nothing is carried"


def _code(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """The code that it is loaded with, where the manifest lets it be carried."""
    if one.item.trust_remote_code:
        yield from code.missing(one, among)


_RULES: tuple[Callable[[Documents, Sequence[Documents]], Iterator[str]], ...] = (
    _description,
    _weights,
    _shards,
    _base,
    _pipeline,
    _modules,
    _code,
)


def _notes(one: Documents, among: Sequence[Documents]) -> Iterator[str]:
    """What may not load, or only as a person knows how."""
    if list(code.references(one)) and not one.item.trust_remote_code:
        yield (
            f"{one.item.id} can be loaded with code of its own, which is not carried:"
            " `trust_remote_code: true` carries it"
        )
    ids = {other.item.id for other in among}
    for file in one.files:
        if posixpath.basename(file) != _ADAPTER:
            continue
        base, _ = _adapts(one, file)
        if base and not is_id(base):
            yield (
                f"{one.label}: {shown(file)} has its base model in the folder {shown(base)}, where"
                " from_pretrained looks for it on the server too: load the base model by its id"
                " there, and the adapter onto it"
            )
        elif base and file != _ADAPTER and base not in ids:
            yield f"{one.label}: {shown(file)} is an adapter of {base}, which is not carried"
    for name in _components(one):
        if _is_excluded(one, name):
            yield (
                f"{one.label}: {_PIPELINE} names {shown(name)}, which `exclude` leaves out:"
                f" from_pretrained needs {shown(name)}=None"
            )


def _adapts(one: Documents, file: str) -> tuple[str, str]:
    """The base model that an adapter names, and its revision; empty where it names none."""
    config = one.mapping(file)
    base, revision = config.get("base_model_name_or_path"), config.get("revision")
    return (
        base if isinstance(base, str) else "",
        revision if isinstance(revision, str) and revision != "main" else "",
    )


def _components(one: Documents) -> Iterator[str]:
    """The folders that a pipeline of diffusers is made of."""
    for name, value in one.mapping(_PIPELINE).items():
        if not name.startswith("_") and isinstance(value, list) and any(value):
            yield name


def _is_excluded(one: Documents, folder: str) -> bool:
    """Whether `exclude` names the folder, so that it is left out on purpose."""
    left = not any(file.startswith(f"{folder}/") for file in one.files)
    return left and formats.matches(f"{folder}/config.json", one.item.exclude)


def _folders(file: str) -> Iterator[str]:
    """The folder of a file, and those above it."""
    folder = posixpath.dirname(file)
    while folder:
        yield folder
        folder = posixpath.dirname(folder)
    yield ""


def _few(files: Collection[str]) -> str:
    """So many of the files as a person reads."""
    named = [shown(file) for file in sorted(files)[:_NAMED]]
    more = [f"{len(files) - _NAMED:,} more"] if len(files) > _NAMED else []
    return ", ".join(named + more)


def _is_or_are(things: Collection[str]) -> str:
    return "is" if len(things) == 1 else "are"
