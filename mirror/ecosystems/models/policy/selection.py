"""Which files of a repository are carried.

In this order: `exclude` removes, `include` restricts, then `weights`, then trust_remote_code.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mirror.core.manifest import FolderRepository
from mirror.core.paths import shown
from mirror.core.text import counted, human_size
from mirror.ecosystems.models.policy import formats
from mirror.ecosystems.models.policy.formats import COMPANIONS, DESCRIPTIONS
from mirror.ecosystems.models.repository import File, Item, label
from mirror.errors import ResolutionError

_CHECKPOINT = re.compile(r"checkpoint-(\d+)/")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The files that are carried.

    remarks: what a person should know about the others, a line each. doubts: about the manifest.
    """

    files: tuple[File, ...]
    remarks: tuple[str, ...]
    doubts: tuple[str, ...]


def choose(kind: str, item: Item, files: Sequence[File]) -> Chosen:
    """What the item's include, exclude, weights and trust_remote_code make of these files.

    Raises ResolutionError when nothing is left, or when what `include` leaves out is needed to load
    the rest.
    """
    choice = _Choice(files)
    if kind == "models" and isinstance(item, FolderRepository):
        _leave_out_checkpoints(item, choice)
    _apply_patterns(item, choice)
    _apply_weights(kind, item, choice)
    choice.leave_out(
        lambda file: formats.is_index(file.path) and _is_orphan(file, choice),
        "lists of shards that are left out",
    )
    _leave_out_code(item, choice)
    if kind == "models" and (lacking := sorted(_lacking(item, choice))):
        raise ResolutionError(
            f"{label(item)}: what `include` leaves out is needed to load the rest",
            problems=[shown(path) for path in lacking],
            hint="Add them to `include`; or to `exclude`, if they are left out on purpose.",
        )
    return Chosen(tuple(choice.files), tuple(choice.remarks), tuple(choice.doubts))


class _Choice:
    """The files that are still carried, and why the others are not."""

    def __init__(self, files: Sequence[File]) -> None:
        self.all = files
        self.paths = {file.path for file in files}
        self.files = list(files)
        self.remarks: list[str] = []
        self.doubts: list[str] = []

    def leave_out(self, unwanted: Callable[[File], bool], reason: str = "") -> int:
        """Carry none of these; tell the reason if there is one. Returns how many they were."""
        kept: list[File] = []
        gone: list[File] = []
        for file in self.files:
            (gone if unwanted(file) else kept).append(file)
        self.files = kept
        if gone and reason:
            size = human_size(sum(file.size for file in gone))
            self.remarks.append(f"{counted(len(gone), 'file')} left out, {size}: {reason}")
        return len(gone)


def _leave_out_checkpoints(item: FolderRepository, choice: _Choice) -> None:
    """A trainer's output holds the model that it ended with, and those that it passed.

    Raises ResolutionError when it holds the latter only.
    """
    steps = [int(m[1]) for path in choice.paths if (m := _CHECKPOINT.match(path))]
    named = any("checkpoint-" in pattern for pattern in item.include)
    if any(name in choice.paths for name in DESCRIPTIONS):
        if not named:
            choice.leave_out(
                lambda file: bool(_CHECKPOINT.match(file.path)),
                "checkpoints on the way to the model (`include` or `path` can name one of them)",
            )
        return
    whole = [
        step
        for step in steps
        if any(f"checkpoint-{step}/{name}" in choice.paths for name in DESCRIPTIONS)
    ]
    if whole and not named:
        raise ResolutionError(
            f"{item.id}: {item.path} holds the checkpoints of a training, and no model of its own",
            hint="Name the one that is meant, such as the newest: path:"
            f" {item.path.rstrip('/')}/checkpoint-{max(whole)}",
        )


def _apply_patterns(item: Item, choice: _Choice) -> None:
    for key, patterns in (("include", item.include), ("exclude", item.exclude)):
        for pattern in patterns:
            if not any(formats.matches(path, [pattern]) for path in choice.paths):
                choice.doubts.append(f"`{key}`: {pattern} matches no file: is it misspelt?")
    choice.leave_out(lambda file: formats.matches(file.path, item.exclude))
    if item.include:
        choice.leave_out(lambda file: not formats.matches(file.path, item.include))
    if not choice.files:
        if not choice.paths:
            raise ResolutionError(f"{label(item)} has no files")
        keys = " and ".join(f"`{key}`" for key in ("include", "exclude") if getattr(item, key))
        raise ResolutionError(
            f"{label(item)}: {keys} left none of {counted(len(choice.paths), 'file')}",
            hint="In patterns `*` stands for any text, / too; what both match is left out.",
        )


def _apply_weights(kind: str, item: Item, choice: _Choice) -> None:
    default = "safetensors" if kind == "models" and not item.include else "all"
    weights = item.weights or default
    if weights == "none":
        choice.leave_out(lambda file: formats.is_weights(file.path), "`weights: none`")
    if weights == "safetensors":
        safe = {
            posixpath.dirname(file.path)
            for file in choice.files
            if file.path.endswith(".safetensors")
        }
        replaced = {
            file
            for file in choice.files
            if formats.is_replaced(file.path, choice.paths)
            and safe.intersection(formats.component(file.path, choice.paths))
        }
        choice.leave_out(
            lambda file: file in replaced and formats.is_state(file.path),
            "the state of a training (`weights: all` carries it)",
        )
        choice.leave_out(
            lambda file: file in replaced,
            "other formats where safetensors stand (`weights: all` carries them)",
        )


def _is_orphan(index: File, choice: _Choice) -> bool:
    """Whether the repository has shards of the index's format beside it, and none is carried.

    from_pretrained would follow it, though weights of another format are there.
    """

    def shards(files: Sequence[File]) -> bool:
        place, ending = posixpath.dirname(index.path), formats.sharded(index.path)
        return any(
            posixpath.dirname(file.path) == place and file.path.endswith(ending) for file in files
        )

    ending = formats.sharded(index.path)
    return bool(ending) and shards(choice.all) and not shards(choice.files)


def _leave_out_code(item: Item, choice: _Choice) -> None:
    """Raises ResolutionError when nothing of use is left, or `include` asks for code by name."""
    choice.leave_out(lambda file: file.path.lower().endswith(".pyc"))
    if item.trust_remote_code:
        return
    asked = [pattern for pattern in item.include if pattern.lower().endswith(".py")]
    named = [file.path for file in choice.files if formats.matches(file.path, asked)]
    gone = choice.leave_out(
        lambda file: formats.is_code(file.path),
        "Python code (`trust_remote_code: true` carries it)",
    )
    only = gone and all(formats.is_paper(file.path) for file in choice.files)
    if named or only:
        what = "what `include` names is Python code" if named else "all of its files are code"
        raise ResolutionError(
            f"{label(item)}: {what}, which is carried with `trust_remote_code: true` only",
            problems=[shown(path) for path in named],
            hint="Read it first: it runs on the server with the rights of whoever loads it.",
        )


def _lacking(item: Item, choice: _Choice) -> Iterator[str]:
    """What loading needs, and the repository has, and `include` leaves out."""
    if not item.include:
        return
    essential = {*DESCRIPTIONS, *COMPANIONS}
    carried = {file.path for file in choice.files}
    folders = {
        formats.component(path, choice.paths)[-1]
        for path in carried
        if formats.is_model(path) and not formats.is_whole(path)
    } | {posixpath.dirname(path) for path in carried if posixpath.basename(path) in essential}
    if len(folders) > 1 and "model_index.json" in choice.paths:
        folders.add("")  # a pipeline is loaded through it
    for path in choice.paths - carried:
        folder, name = posixpath.split(path)
        if name in essential and folder in folders and not formats.matches(path, item.exclude):
            yield path
