"""Stage `store`: is every byte still the one that was installed?"""

from __future__ import annotations

from collections.abc import Sequence

from mirror.core.progress import Progress
from mirror.core.text import counted, human_size
from mirror.errors import MachineError
from mirror.store import damage, strays
from mirror.store.damage import Damage, Found, Holding
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.verify.report import Check
from mirror.verify.subject import Subject

_REPAIR = "mirror repair BUNDLE puts it back."
_WORDS = {"changed": "changed", "missing": "missing", "extra": "extra", "mode": "with another mode"}
_BYTECODE = (
    "Python wrote it for somebody who may write here, and runs it in place of the code beside it."
    " mirror repair removes it; PYTHONDONTWRITEBYTECODE=1 keeps it from coming back."
)


def check(subject: Subject) -> list[Check]:
    """The generation and its blobs, before they are relied on.

    Files that somebody has added are told and do not stop the rest: `self_check` is stricter.
    """
    found = damage.look(subject.root, [subject.generation], subject.progress)
    [holding] = found.holdings
    extra = _of(holding.damage, "extra")
    checks = [_blobs(found), _generation(holding, "generation", beside=("extra", "bytecode"))]
    if extra:
        advice = f"mirror verify --store names these as well. {_REPAIR}"
        checks.append(Check("added", "warn", _evidence(extra), advice))
    return checks


def self_check(root: Root, chosen: Sequence[Generation] | None, progress: Progress) -> list[Check]:
    """These generations; None for all that the root has, and then also blobs that none lists.

    Whatever was changed, has gone or has come fails, but for Python's bytecode, which is told.
    """
    everything = chosen is None
    todo = strays.generations(root) if chosen is None else chosen
    found = damage.look(root, todo, progress, idle=everything)
    checks = [_blobs(found)]
    for holding in found.holdings:
        name = f"generation {holding.generation.number}"
        checks.append(_generation(holding, name, beside=("bytecode",)))
        if files := [d for d in _of(holding.damage, "bytecode") if d.place.endswith(".pyc")]:
            text = f"{counted(len(files), 'file')} of bytecode that nobody installed"
            checks.append(Check(f"{name}: bytecode", "warn", _evidence(files, text), _BYTECODE))
    if others := strays.strays(root):
        evidence = "\n".join(
            [counted(len(others), "thing") + " that mirror did not put here", *others]
        )
        advice = "See what it is; what nobody needs can be removed."
        checks.append(Check("root", "warn", evidence, advice))
    return checks


def choose(root: Root, number: int | None) -> list[Generation]:
    """The generation of this number, else the one in use. Raises MachineError for none."""
    known = {generation.number: generation for generation in strays.generations(root)}
    if number is None:
        number = strays.in_use(root)
    if number is None or number not in known:
        raise MachineError(
            f"{root.path} has no generation {number}"
            if number
            else f"nothing is in use in {root.path}",
            problems=[f"it has {', '.join(map(str, known))}"] if known else [],
            hint="`mirror list` shows them all.",
        )
    return [known[number]]


def _blobs(found: Found) -> Check:
    what = f"{counted(found.blobs, 'blob')}, {human_size(found.size)}"
    if found.idle:
        what += f", {found.idle:,} of them of no generation"
    if not found.damaged:
        return Check("store", "pass", f"{what}; every sha256 is right")
    advice = [_REPAIR, *damage.owners(found, (d.sha256 for d in found.damaged))]
    return Check("store", "fail", _evidence(found.damaged, f"of {what}"), "\n".join(advice))


def _generation(holding: Holding, name: str, beside: Sequence[str]) -> Check:
    """beside: the sorts of damage that are not told here."""
    files = counted(holding.files, "file")
    what = f"{files}, {human_size(holding.size)}, {holding.linked:,} of them linked to blobs"
    wrong = [item for item in holding.damage if item.what not in beside]
    if not wrong:
        return Check(name, "pass", f"{what}; all as they were sealed")
    advice = _REPAIR
    if index := holding.index:
        advice += f" The bundle is {index.name} {index.version}, digest {index.digest}."
    return Check(name, "fail", _evidence(wrong, f"of {what}"), advice)


def _of(wrong: Sequence[Damage], what: str) -> list[Damage]:
    return [item for item in wrong if item.what == what]


def _evidence(wrong: Sequence[Damage], what: str = "") -> str:
    """How many there are of each sort, then a line for each."""
    counts = [
        f"{number:,} {word}" for what, word in _WORDS.items() if (number := len(_of(wrong, what)))
    ]
    head = " ".join(filter(None, (", ".join(counts), what)))
    return "\n".join([head, *map(str, sorted(wrong, key=lambda item: item.place))])
