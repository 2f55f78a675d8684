"""One logical line of a requirements file, or one item of the manifest -> what it asks for.

Nothing is dropped: an option that cannot be done the safe way is a mistake that says what to write.
What each form gives is in docs/requirements.md.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from mirror.core.requirements.places import bare, checked_hash, extras_of, is_bare, locate
from mirror.core.requirements.text import quoted
from mirror.core.requirements.values import (
    Constraint,
    Entry,
    Flag,
    GitUrl,
    Include,
    Index,
    Line,
    LocalProject,
    Mistake,
    Note,
    Place,
    Refusal,
    Specifier,
    WheelsOnly,
)

_LONG = {
    "-r": "--requirement",
    "-c": "--constraint",
    "-i": "--index-url",
    "-f": "--find-links",
    "-e": "--editable",
    "-C": "--config-settings",
    "--config-setting": "--config-settings",
    "--pypi-url": "--index-url",
}
_BUILD = (
    "is a setting for a build, and mirror carries what is built already: take it out; where the "
    "wheel needs it, build that wheel yourself and name it: ./dist/NAME.whl"
)
_OF_PIP = "is a setting of pip itself, without a meaning here: take it out"
_REFUSED = {
    "--no-binary": "asks for a build from source, and mirror carries wheels: take it out, or build "
    "that wheel yourself and name it: ./dist/NAME.whl",
    "--trusted-host": "switches off the check of certificates, which mirror always makes: take it "
    "out, and name your authority's certificates in REQUESTS_CA_BUNDLE and SSL_CERT_FILE",
    "--no-index": "leaves nowhere to take packages from: take it out; a wheel that you have is "
    "named itself: ./dist/NAME.whl",
    "--no-deps": "would leave the set incomplete: take it out; what the server has already is "
    "listed under target.provided",
    "--config-settings": _BUILD,
    "--global-option": _BUILD,
    "--build-option": _BUILD,
    "--install-option": _BUILD,
    "--no-build-isolation": _BUILD,
    "--use-pep517": _BUILD,
    "--no-use-pep517": _BUILD,
    "--use-feature": _OF_PIP,
    "--use-deprecated": _OF_PIP,
}
_TAKE_VALUE = frozenset(
    {
        *("--requirement", "--constraint", "--index-url", "--extra-index-url", "--find-links"),
        *("--editable", "--no-binary", "--only-binary", "--trusted-host", "--hash"),
        *("--config-settings", "--global-option", "--build-option", "--install-option"),
        *("--use-feature", "--use-deprecated"),
    }
)
_EDITABLE = re.compile(r"(?:-e|--editable)[\s=]*(?P<rest>[^\s=-].*)")
_OPTION = re.compile(r"(?:^|\s)-")
_NAME_AT = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\])?\s*@")
_VARIABLE = re.compile(r"\$\{\w+\}")
_PROJECT_FILE = re.compile(
    r"(?P<path>(?:[A-Za-z]:)?(?:[^\[\]:;@]*[/\\])?pyproject\.toml)"
    r"(?:\[(?P<extras>[^\[\]]*)\])?(?::(?P<groups>[^\[\]:]*))?"
)
_ENVIRONMENT_FILE = re.compile(r"(?P<path>(?:[A-Za-z]:)?[^;@:]+\.ya?ml)(?::(?P<pip>pip))?")
_FILE = re.compile(
    r"(?:[^\s;@]*[/\\])?(?:[^\s;@/\\]+\.(?:txt|toml|ipynb)|requirements[^\s;@/\\]*\.in"
    r"|setup\.(?:py|cfg)|Pipfile|[^\s;@/\\]*\.lock)"
)


def entries(line: Line, *, constraint: bool = False) -> Iterator[Entry]:
    """What a line asks for. constraint: it stands in a constraints file."""
    text, where = line.text, line.where
    editable = _EDITABLE.fullmatch(text)
    text = editable["rest"] if editable else text
    begin = found.start() if (found := _OPTION.search(text)) else len(text)
    asked, hashes = text[:begin].strip(), list[str]()
    try:
        options = list(_options(text[begin:]))
    except Refusal as refusal:
        yield Mistake(str(refusal), where)
        return
    for name, value in options:
        try:
            if name != "--hash":
                yield from _option(name, value, where, asked, constraint)
            elif asked:
                hashes.append(checked_hash(*value.partition(":")[::2]))
            else:
                raise Refusal("--hash belongs to a requirement: is a \\ missing one line above?")
        except Refusal as refusal:
            yield Mistake(str(refusal), where)
    if asked:
        try:
            yield from _asked(asked, where, tuple(hashes), bool(editable), constraint)
        except Refusal as refusal:
            yield Mistake(str(refusal), where)


def requirement(text: str, where: str, hashes: tuple[str, ...] = ()) -> Specifier | Place:
    """What a PEP 508 requirement asks for: a package of an index, or one that has a place.

    Raises Refusal.
    """
    _no_variables(text)
    try:
        asked = Requirement(text)
    except InvalidRequirement as error:
        raise Refusal(_unclear(text, str(error).splitlines()[0])) from None
    name = canonicalize_name(asked.name)
    if not asked.url:
        return Specifier(name, str(asked), where, hashes)
    marker = str(asked.marker) if asked.marker else ""
    extras = extras_of(",".join(asked.extras))
    return locate(asked.url, where, name=name, extras=extras, marker=marker, hashes=hashes)


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Options with their values. Quotes group, as in a shell; a backslash is a backslash."""
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        words = list(lexer)
    except ValueError:
        raise Refusal(f"{quoted(text.strip())}: a quotation mark is not closed") from None
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            raise Refusal(f"{quoted(word)} stands behind an option: give it a line of its own")
        if short := re.fullmatch(r"(-[A-Za-z])=?(.+)", word):
            name, value = short[1], short[2]
        else:
            name, _, value = word.partition("=")
        name = _LONG.get(name, name)
        if name in _TAKE_VALUE and not value:
            if not words:
                raise Refusal(f"{name} lacks its value")
            value = words.pop(0)
        yield name, value


def _option(name: str, value: str, where: str, asked: str, constraint: bool) -> Iterator[Entry]:
    if name in ("--index-url", "--extra-index-url", "--find-links"):
        yield from index_option(name, value, where)
        return
    if name in _REFUSED:
        raise Refusal(f"{' '.join(filter(None, (name, quoted(value))))} {_REFUSED[name]}")
    if name not in (*_TAKE_VALUE, "--pre", "--require-hashes", "--prefer-binary"):
        raise Refusal(f"{quoted(name)} is no option that a requirements file can hold: take it out")
    if asked and name not in ("--only-binary", "--prefer-binary"):
        raise Refusal(f"{name} stands behind {quoted(asked)}: give it a line of its own")
    match name:
        case "--requirement" if constraint:
            raise Refusal(f"-r {quoted(value)} stands in a constraints file: write -c")
        case "--requirement" | "--constraint":
            yield _include(name, value, where)
        case "--editable":
            raise Refusal("-e stands behind another option: give it a line of its own")
        case "--pre":
            yield Flag("prereleases", where)
        case "--require-hashes":
            yield Flag("require_hashes", where)
        case "--only-binary":
            names = [part.strip() for part in value.split(",")]
            known = [n if n == ":all:" else canonicalize_name(n) for n in names if n != ":none:"]
            yield WheelsOnly(tuple(filter(None, known)), where)
        case _:  # --prefer-binary: a wheel is taken wherever there is one
            return


def _include(option: str, path: str, where: str) -> Include:
    _no_variables(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path):
        raise Refusal(f"{quoted(path)} can change without a trace: download it, and name the file")
    if option == "--constraint":
        return Include("constraints", path.replace("\\", "/"), where)
    return _project_file(path, where) or Include("requirements", path.replace("\\", "/"), where)


def index_option(option: str, url: str, where: str) -> Iterator[Entry]:
    """What an option asks for that names an index or a find-links page. Raises Refusal."""
    if not re.match(r"https?://", url):
        raise Refusal(
            f"{option} {quoted(url)} is no address: name each wheel itself (./dist/NAME.whl), or "
            "an index by its https:// address under wheels.indexes"
        )
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    login, _, host = authority.rpartition("@")
    clean = f"{scheme}://{host}{slash}{path}"
    _no_variables(clean)
    if login:
        text = (
            f"{option}: the credentials are not read from here: netrc or the environment has them"
        )
        yield Note(text, where)
    yield Index(option, clean, where)


def _asked(
    text: str, where: str, hashes: tuple[str, ...], editable: bool, constraint: bool
) -> Iterator[Entry]:
    _no_variables(text)
    text = text.strip("\"'") if editable else text
    entry: Entry
    if include := _project_file(text, where):
        entry = include
    elif _NAME_AT.match(text) and not text.startswith("git@"):
        entry = requirement(text, where, hashes)
    elif is_bare(text):
        entry = bare(text, where, hashes)
    elif _FILE.fullmatch(text):
        raise Refusal(_file_advice(text))
    else:
        entry = requirement(text, where, hashes)
    if constraint:
        if not isinstance(entry, Specifier) or "[" in text.partition(";")[0]:
            raise Refusal(
                f"{quoted(text)} in a constraints file: only names and versions stand there; what "
                "is to come from a place, or with extras, is a requirement"
            )
        entry = Constraint(entry.name, entry.text, where, hashes)
    if editable:
        if not isinstance(entry, LocalProject | GitUrl):
            raise Refusal(f"-e {quoted(text)} is no project: take the -e out")
        yield Note(f"-e {quoted(text)} is carried as a wheel: no working copy goes along", where)
        if isinstance(entry, LocalProject):
            entry = replace(entry, editable=True)
    yield entry


def _project_file(text: str, where: str) -> Include | None:
    """`pyproject.toml[extra,...]`, `pyproject.toml:group,...`, `x.yml`, `x.yml:pip` and such."""
    if found := _ENVIRONMENT_FILE.fullmatch(text):
        path, part = found["path"].replace("\\", "/"), tuple(filter(None, [found["pip"]]))
        return Include("environment", path, where, groups=part)
    found = _PROJECT_FILE.fullmatch(text)
    if not found:
        return None
    extras, groups = extras_of(found["extras"] or ""), extras_of(found["groups"] or "")
    if extras and groups:
        path = quoted(found["path"])
        raise Refusal(
            f"{quoted(text)} asks for extras of the project and for groups beside it: write two "
            f"items, {path}[{','.join(extras)}] and {path}:{','.join(groups)}"
        )
    return Include("pyproject", found["path"].replace("\\", "/"), where, extras, groups)


def _no_variables(text: str) -> None:
    if variable := _VARIABLE.search(text):
        raise Refusal(
            f"{variable[0]} is not filled in from the environment, on which the lock would depend: "
            "write the value; credentials come from git's own helper, from netrc or the environment"
        )


def _file_advice(text: str) -> str:
    file = quoted(text)
    if re.search(r"\.(txt|in)$", text):
        return f"{file} is a file and no package: write -r {file}"
    if "setup." in text:
        folder = quoted(text[: text.rindex("setup.")]) or "./"
        return f"{file} is part of a project: name its folder, {folder}"
    return (
        f"{file} is the file of another tool, which mirror does not read: export it as a "
        "requirements file, and write -r FILE"
    )


def _unclear(text: str, reason: str) -> str:
    """Why a requirement is none. The commonest slips are named."""
    shown = quoted(text)
    if text[:1] in "\"'":
        return f"{shown}: quotation marks are for shells: take them out"
    if re.match(r"pip3? |python", text):
        return f"{shown} is a command: write what stands behind `install`"
    if re.match(r"[\w.\[\],-]+\s*=[^=]", text):
        return f"{shown}: one = is conda's: write =="
    if re.search(r"[<>~]=?\s*[\w.]+\.\*", text):
        return f"{shown}: .* goes with == and != only: take it out"
    if "://" in text and ";" in text:
        return f"{shown}: write a space before the ;"
    if re.search(r"\S#", text):
        return f"{shown}: a comment begins with a space and #"
    if text.endswith("\\"):
        return f"{shown}: the \\ at the end has spaces behind it, and so continues nothing"
    if re.fullmatch(r"[A-Za-z0-9][^\s;]*(\s+[A-Za-z0-9][^\s;]*)+", text):
        return f"{shown}: write one requirement a line"
    return f"{shown} is no requirement: {reason[0].lower()}{reason[1:]}"
