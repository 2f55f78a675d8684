"""pip-tools' resolver, made to resolve for another machine than this one.

Run as a script, in a process of its own, by `pip_tools.py`: what it replaces in pip holds for the
whole process. It imports nothing of mirror, reads a request from stdin (JSON; the keys are those of
`_resolve`) and writes an answer to stdout: {"pins": [...]}, or {"failure": KIND, "problems": [...]}
with the kinds of `pip_tools._explained`. What is replaced, and why: docs/adr/0004.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

#: The versions whose inside is known here; the extra `pip-tools` in pyproject.toml pins them.
VERSIONS = {"pip": "26.3", "pip-tools": "7.6.2"}


def main() -> None:
    """Answer the one request on stdin."""
    # A script's folder comes first on the path, and the modules here are no top-level ones.
    sys.path = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    request = json.load(sys.stdin)
    answer: dict[str, object]
    if problems := _unfit():
        answer = {"failure": "versions", "problems": problems}
    else:
        with contextlib.redirect_stdout(sys.stderr):  # pip says this and that there
            answer = _answered(request)
    json.dump(answer, sys.stdout)


def _unfit() -> list[str]:
    problems = []
    for package, wanted in VERSIONS.items():
        try:
            found = f"version {metadata.version(package)} is"
        except metadata.PackageNotFoundError:
            found = "it is not"
        if wanted not in found.split():
            problems.append(f"{package} {wanted} is needed; {found} installed")
    return problems


def _answered(request: Mapping[str, Any]) -> dict[str, object]:
    from pip._internal import exceptions as known
    from pip._vendor.requests import RequestException

    unreachable = (
        known.NetworkConnectionError,
        known.ConnectionFailedError,
        known.ConnectionTimeoutError,
        known.IncompleteDownloadError,
        known.ProxyConnectionError,
        known.SSLMissingError,
        known.SSLVerificationError,
        known.HashError,
        RequestException,
    )
    reasons = _Reasons()
    try:
        return {"pins": _resolve(**request, reasons=reasons)}
    except unreachable as error:
        return {"failure": "download", "problems": _words(error)}
    except known.PipError as error:
        return {"failure": "resolution", "problems": reasons.of(error)}
    except Exception as error:  # noqa: BLE001 -- whatever it is, nobody is to meet its traceback
        problem = f"{type(error).__name__}: {error}"
        return {"failure": "other", "problems": [*reasons.lines, problem]}


def _resolve(
    requirements: Sequence[str],
    constraints: Sequence[str],
    kept: Mapping[str, str],
    options: Sequence[str],
    own: Mapping[str, Mapping[str, Any]],
    logins: Sequence[str],
    sdists: bool,
    folder: str,
    markers: Mapping[str, str],
    platforms: Sequence[str],
    python: Sequence[int],
    reasons: _Reasons,
) -> list[dict[str, object]]:
    """The wheels that pip-tools chooses.

    kept: name -> version. options: pip's. own: canonical names of packages that come from an index
    of their own -> its `url`, and `flat` where that is a page of links. sdists: whether source may
    be run for its metadata. markers, platforms: the target's, as PEP 508 and wheels' file names
    write them. python: (3, 10). logins: the addresses of all indexes, with credentials.
    """
    from pip._internal.exceptions import InstallationError
    from pip._internal.models.target_python import TargetPython
    from pip._internal.req.constructors import install_req_from_req_string
    from pip._vendor.packaging import markers as packaging_markers
    from piptools.repositories import PyPIRepository
    from piptools.resolver import BacktrackingResolver

    _replace(packaging_markers, "default_environment", lambda: dict(markers))
    if not sdists:
        _refuse_to_build()
    _refuse_to_skip_pages()
    sizes = _note_sizes()
    repository = PyPIRepository(["--no-input", "--progress-bar", "off", *options], cache_dir=folder)
    # pip finds an index's credentials here; in its options they would be on command lines.
    _replace(repository.session.auth, "index_urls", list(logins))
    target_python = TargetPython(
        platforms=list(platforms),
        py_version_info=tuple(python),
        abis=["cp{}{}".format(*python)],
        implementation="cp",
    )
    finder = repository.command._build_package_finder(
        repository.options, repository.session, target_python
    )
    _replace(repository, "_finder", finder)
    resolver_for = functools.partial(
        repository.command.make_resolver, py_version_info=tuple(python)
    )
    _replace(repository.command, "make_resolver", resolver_for)
    _send_to_own_index(finder._link_collector, own)
    reasons.listen(finder)

    def attempt(kept: Mapping[str, str]) -> Any:
        # The resolver writes into what it is given, so each attempt makes its own.
        wanted = [install_req_from_req_string(line) for line in [*requirements, *constraints]]
        for requirement in wanted[len(requirements) :]:
            requirement.constraint = True
        known = {n: install_req_from_req_string(f"{n}=={v}") for n, v in kept.items()}
        resolver = BacktrackingResolver(wanted, known, repository, allow_unsafe=True)
        reasons.lines.clear()
        # It drops one that is kept, or more, each time that they stand in the way.
        chosen = resolver.resolve(max_rounds=len(kept) + 1)
        given = {requirement.link for requirement in wanted if requirement.constraint}
        return [requirement for requirement in chosen if requirement.link not in given]

    try:
        chosen = attempt(kept)
    except InstallationError:
        if not kept:
            raise
        chosen = attempt({})
    return [_pin(requirement, sizes) for requirement in chosen]


def _replace(owner: object, name: str, value: object) -> None:
    """Put something else in the place of an attribute of pip, which has to be there."""
    getattr(owner, name)
    setattr(owner, name, value)


def _send_to_own_index(collector: Any, own: Mapping[str, Mapping[str, Any]]) -> None:
    """pip asks every index for every package; these are asked for where they belong."""
    from pip._internal.models.search_scope import SearchScope
    from pip._vendor.packaging.utils import canonicalize_name

    scopes = {
        name: SearchScope.create(
            find_links=[index["url"]] if index["flat"] else [],
            index_urls=[] if index["flat"] else [index["url"]],
            no_index=False,
        )
        for name, index in own.items()
    }
    others, original = collector.search_scope, collector.collect_sources

    def collect(project_name: str, candidates_from_page: Any) -> Any:
        collector.search_scope = scopes.get(canonicalize_name(project_name), others)
        return original(project_name, candidates_from_page)

    _replace(collector, "collect_sources", collect)


def _pin(requirement: Any, sizes: Mapping[str, int]) -> dict[str, object]:
    url = requirement.link.url_without_fragment
    return {
        "name": requirement.name,
        "version": next(iter(requirement.specifier)).version,
        "file": requirement.link.filename,
        "url": url,
        "sha256": requirement.link._hashes.get("sha256"),
        "size": sizes.get(url),
        "yanked": requirement.link.yanked_reason,
    }


def _refuse_to_build() -> None:
    """`--only-binary` is about an index; a dependency that names an address would be built."""
    from pip._internal.distributions.sdist import SourceDistribution
    from pip._internal.exceptions import InstallationError

    def refuse(self: Any, *_: object, **__: object) -> None:
        raise InstallationError(f"{self.req} is no wheel, and nothing is built for another machine")

    _replace(SourceDistribution, "prepare_distribution_metadata", refuse)


def _refuse_to_skip_pages() -> None:
    """pip takes a page that it cannot read for an empty one, and would lock an older version."""
    from pip._internal.exceptions import NetworkConnectionError
    from pip._internal.index import collector

    def refuse(link: Any, reason: Any, meth: object = None) -> None:
        response = getattr(reason, "response", None)
        if response is None or response.status_code not in (404, 410):
            raise NetworkConnectionError(f"{link.url}: {reason}")

    _replace(collector, "_handle_get_simple_fail", refuse)


def _note_sizes() -> dict[str, int]:
    """URL -> bytes, of every file that an index tells the size of; pip reads and forgets it."""
    from pip._internal.models.link import Link

    sizes: dict[str, int] = {}
    original: Callable[..., Any] = Link.from_json

    def noting(file_data: Mapping[str, Any], page_url: str) -> Any:
        link = original(file_data, page_url)
        if link is not None and isinstance(size := file_data.get("size"), int):
            sizes[link.url_without_fragment] = size
        return link

    _replace(Link, "from_json", noting)
    return sizes


class _Reasons(logging.Handler):
    """Why there is no solution: what pip writes to its log (`lines`), and what it does not say."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._finder: Any = None

    def listen(self, finder: Any) -> None:
        """Hear what pip's resolver says from now on; nobody else does."""
        self._finder = finder
        logger = logging.getLogger("pip._internal.resolution.resolvelib.factory")
        logger.setLevel(logging.INFO)
        logger.propagate = False
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        # After the conflict come a claim that is often wrong (pip issue 14193), and advice.
        text = re.split("Additionally, some packages|To fix this", record.getMessage())[0]
        if record.levelno >= logging.CRITICAL or "The conflict is caused by:" in text:
            self.lines += [line.strip() for line in text.splitlines() if line.strip()]

    def of(self, error: Exception) -> list[str]:
        """All that is known about an error of pip, a line each."""
        return [*self.lines, *_words(error), *self._misfits(error)]

    def _misfits(self, error: Exception) -> Iterator[str]:
        """Files of a version that is asked for, where the index has none that fits the target.

        pip says "no matching distribution" then, as if there were no such version (issue 5003).
        """
        for cause in getattr(error.__cause__, "causes", ()):
            _, asked = cause.requirement.get_candidate_lookup()
            if asked is None or self._has_one(asked):
                continue
            skipped: list[str] = []
            self._finder._log_skipped_link = lambda link, *_, to=skipped: to.append(link.filename)
            self._finder._all_candidates.pop(asked.name, None)
            self._finder.find_all_candidates(asked.name)
            files = list(dict.fromkeys(f for f in skipped if _is_of(f, asked.specifier)))
            if files:
                shown = [*(["..."] if files[3:] else []), *files[-3:]]
                yield f"Of {asked.req} there is no wheel for the target, only {', '.join(shown)}"

    def _has_one(self, asked: Any) -> bool:
        found = self._finder.find_all_candidates(asked.name)
        return any(asked.specifier.contains(item.version, prereleases=True) for item in found)


def _is_of(file: str, specifier: Any) -> bool:
    """Whether a wheel or an sdist of this name is of a version that fits the specifier."""
    from pip._vendor.packaging.utils import parse_sdist_filename, parse_wheel_filename

    parse = parse_wheel_filename if file.endswith(".whl") else parse_sdist_filename
    try:
        return bool(specifier.contains(parse(file)[1], prereleases=True))
    except ValueError:  # an egg, an installer, or no version
        return False


def _words(error: Exception) -> list[str]:
    """What an error of pip says, without its reference to pip's documentation."""
    from pip._vendor.rich.text import Text

    parts = [str(error)]
    if message := getattr(error, "message", None):  # meant for a terminal, with colours
        both = (message, getattr(error, "context", None))
        parts = [
            Text.from_markup(part).plain if isinstance(part, str) else str(part or "")
            for part in both
        ]
    lines = [line.strip() for part in parts for line in part.splitlines()]
    return [line for line in lines if line and not line.startswith("ResolutionImpossible")]


if __name__ == "__main__":
    main()
