"""Wheels that come from no index: addresses, files, git repositories, projects."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zipfile import ZipFile

import pytest

from mirror.core.artifact import Artifact
from mirror.core.manifest import WheelsSection
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import source
from mirror.errors import DownloadError, ResolutionError, UsageError
from mirror.fetch.http import Fetcher, Request
from mirror.store.blobs import Blobs
from tests.index import make_wheel, serve

# A build backend that needs nothing but Python: what is tested is how it is called. As setuptools
# does, it leaves build/ where it runs, and ships what it finds there.
BACKEND = """
import base64, hashlib, os, zipfile
def get_requires_for_build_wheel(config=None): return []
def build_wheel(folder, config=None, metadata=None):
    version = open("VERSION").read().strip()
    os.makedirs("build", exist_ok=True)
    os.makedirs("thing.egg-info", exist_ok=True)
    for name in os.listdir("."):
        if name.startswith("thing") and name.endswith(".py"):
            open("build/" + name, "w").write(open(name).read())
            open(name, "a").close()
            assert os.stat(name).st_mode & 0o200, name + " cannot be written"
    files = {name: open("build/" + name).read() for name in sorted(os.listdir("build"))}
    files |= {"thing-%s.dist-info/METADATA" % version:
        "Metadata-Version: 2.1\\nName: thing\\nVersion: %s\\nRequires-Dist: dep\\n" % version,
        "thing-%s.dist-info/WHEEL" % version:
        "Wheel-Version: 1.0\\nGenerator: t\\nRoot-Is-Purelib: true\\nTag: TAG\\n"}
    record = "thing-%s.dist-info/RECORD" % version
    rows = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows += "%s,sha256=%s,%d\\n" % (name, digest.decode(), len(text.encode()))
    files[record] = rows + record + ",,\\n"
    file = "thing-%s-TAG.whl" % version
    with zipfile.ZipFile(os.path.join(folder, file), "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    return file
"""


def make_project(folder: Path, version: str = "1", *, tag: str = "py3-none-any") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "thing"\ndynamic = ["version", "dependencies"]\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (folder / "backend.py").write_text(BACKEND.replace("TAG", tag))
    (folder / "VERSION").write_text(version)
    (folder / "thing.py").write_text("X = 1\n")
    return folder


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_repository(folder: Path, below: str = ".") -> str:
    folder.mkdir()
    make_project(folder / below)
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "one")
    git(folder, "tag", "-a", "v1", "-m", "one")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    make_wheel(folder, "dep", "1")
    return folder


@pytest.fixture
def context(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    blobs = Blobs(tmp_path / "cache")
    with serve(shelf) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield Context(
            folder=tmp_path,
            target=Target(python="3.11", platform="linux-x86_64", glibc="2.28"),
            blobs=blobs,
            fetcher=Fetcher(blobs, Quiet()),
            progress=Quiet(),
        )


def below(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def modules(context: Context, wheel: Artifact) -> set[str]:
    with ZipFile(context.blobs.path(wheel.sha256)) as archive:
        return {name for name in archive.namelist() if name.endswith(".py")}


def lock(context: Context, *requirements: str) -> dict[str, Artifact]:
    """Resolve, have the bytes, prove; by name."""
    section = WheelsSection(requirements=list(requirements))
    locked = source.resolve(section, context)
    found = source.requests(locked, section, context)
    context.fetcher.fetch([request for request in found if isinstance(request, Request)])
    source.prove(locked, section, context)
    return {artifact.text("name"): artifact for artifact in locked}


def test_a_local_wheel_brings_what_it_depends_on(context: Context) -> None:
    (context.folder / "dist").mkdir()
    wheel = make_wheel(context.folder / "dist", "ours", "2", requires=["dep"])
    locked = lock(context, "./dist/ours-2-py3-none-any.whl")
    assert set(locked) == {"ours", "dep"}
    assert locked["ours"].origin["place"] == "file dist/ours-2-py3-none-any.whl"
    section = WheelsSection(requirements=["./dist/ours-2-py3-none-any.whl"])
    before = source.inputs(section, context)
    assert source.requests([locked["ours"]], section, context) == [wheel]
    make_wheel(context.folder / "dist", "ours", "2", requires=["dep", "missing-one"])
    assert source.inputs(section, context) != before
    with pytest.raises(ResolutionError, match="missing-one"):
        lock(context, "./dist/ours-2-py3-none-any.whl")


def test_a_wheel_at_an_address(context: Context, tmp_path: Path) -> None:
    releases = tmp_path / "releases"
    releases.mkdir()
    make_wheel(releases, "flash", "3", requires=["dep"])
    with serve(releases) as url:
        address = url.replace("/simple", "/files/flash-3-py3-none-any.whl")
        locked = lock(context, f"flash @ {address}")
        assert set(locked) == {"flash", "dep"}
        assert "127.0.0.1" not in str(locked["flash"])
        with pytest.raises((UsageError, DownloadError)):
            lock(context, f"flash @ {address}#sha256={'0' * 64}")


@pytest.mark.parametrize("revision", ["", "@main", "@v1", "@COMMIT"])
def test_a_git_repository_is_locked_to_a_commit(
    context: Context, tmp_path: Path, revision: str
) -> None:
    commit = make_repository(tmp_path / "repo")
    address = f"git+file://{tmp_path}/repo{revision.replace('COMMIT', commit)}"
    locked = lock(context, f"thing @ {address}")
    assert locked["thing"].origin["commit"] == commit
    assert set(locked) == {"thing", "dep"}
    (tmp_path / "repo" / "VERSION").write_text("2")
    git(tmp_path / "repo", "commit", "--quiet", "-am", "two")
    section = WheelsSection(requirements=[f"thing @ {address}"])
    context.blobs.path(locked["thing"].sha256).unlink()
    [again] = source.requests([locked["thing"]], section, context)
    assert again == context.blobs.path(locked["thing"].sha256)


def test_a_subdirectory_and_a_submodule(
    context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # git refuses submodules in folders of the machine unless it is told otherwise.
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.file.allow")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "always")
    make_repository(tmp_path / "inner")
    outer = tmp_path / "outer"
    make_repository(outer, "packages/thing")
    git(outer, "submodule", "--quiet", "add", str(tmp_path / "inner"))
    git(outer, "commit", "--quiet", "-m", "with a submodule")
    locked = lock(context, f"thing @ git+file://{outer}@main#subdirectory=packages/thing")
    assert locked["thing"].text("place") == "git thing @ outer packages/thing"


def test_a_repository_that_is_not_there_or_lacks_the_revision(
    context: Context, tmp_path: Path
) -> None:
    make_repository(tmp_path / "repo")
    for address, words in (("gone", "ls-remote"), ("repo@v9", "v9"), ("repo@abcdef1", "40 digits")):
        with pytest.raises(DownloadError, match=words):
            lock(context, f"thing @ git+file://{tmp_path}/{address}")


def test_a_project_is_built_and_a_change_makes_the_lock_stale(context: Context) -> None:
    make_project(context.folder / "mine")
    locked = lock(context, "./mine")
    assert locked["thing"].text("place") == "project mine"
    section = WheelsSection(requirements=["./mine"])
    before = source.inputs(section, context)
    assert source.inputs(section, context) == before
    (context.folder / "mine" / "thing.py").write_text("X = 2\n")
    assert source.inputs(section, context) != before
    context.blobs.path(locked["thing"].sha256).unlink()
    with pytest.raises(ResolutionError, match="came out different"):
        source.requests([locked["thing"]], section, context)


def test_what_fits_one_machine_only_is_refused_unless_listed(context: Context) -> None:
    make_project(context.folder / "mine", tag="cp311-cp311-linux_x86_64")
    with pytest.raises(ResolutionError, match="thing"):
        lock(context, "./mine")
    other = replace(context, target=replace(context.target, platform="linux-aarch64"))
    section = WheelsSection(requirements=["./mine"], build=["thing"])
    with pytest.raises(ResolutionError, match="can be built for"):
        source.resolve(section, other)


def test_a_build_leaves_nothing_behind_and_ships_nothing_deleted(context: Context) -> None:
    project = make_project(context.folder / "mine")
    (project / "thing_old.py").write_text("OLD = 1\n")
    # What an earlier build by hand left there.
    (project / "build").mkdir()
    (project / "build" / "thing_gone.py").write_text("GONE = 1\n")
    before = below(project)
    locked = lock(context, "./mine")
    assert modules(context, locked["thing"]) == {"thing.py", "thing_old.py"}
    assert below(project) == before
    assert not (project / "thing.egg-info").exists()
    (project / "thing_old.py").unlink()
    assert modules(context, lock(context, "./mine")["thing"]) == {"thing.py"}


def test_a_project_that_cannot_be_written_is_built(context: Context) -> None:
    project = make_project(context.folder / "mine")
    (project / "thing.py").chmod(0o444)
    project.chmod(0o555)
    try:
        assert set(lock(context, "./mine")) == {"thing", "dep"}
    finally:
        project.chmod(0o755)


def test_a_project_may_take_its_version_from_git_and_modules_through_links(
    context: Context,
) -> None:
    project = context.folder / "mine"
    make_repository(project)
    backend = (project / "backend.py").read_text()
    (project / "backend.py").write_text(
        backend.replace('open("VERSION").read()', 'os.popen("git describe --tags").read()').replace(
            'os.listdir(".")', 'os.listdir(".") + os.listdir("more")'
        )
        + "os.stat('more/thing_more.py')\n"
    )
    git(project, "tag", "3")
    git(project, "tag", "-d", "v1")
    (context.folder / "elsewhere").mkdir()
    (context.folder / "elsewhere" / "thing_more.py").touch()
    (project / "more").symlink_to("../elsewhere")
    (project / "thing_more.py").touch()
    assert lock(context, "./mine")["thing"].text("version") == "3"


def test_only_what_is_made_from_sources_is_not_seen(context: Context) -> None:
    project = make_project(context.folder / "mine")
    section = WheelsSection(requirements=["./mine"])
    before = source.inputs(section, context)
    for name in (".venv", "venv", "build", "dist", ".tox", ".nox", "node_modules"):
        (project / name).mkdir()
        (project / name / "a.py").touch()
    (project / "src" / "thing.egg-info").mkdir(parents=True)
    (project / "src" / "thing.egg-info" / "PKG-INFO").touch()
    (project / ".venv" / "python").symlink_to("gone")
    assert source.inputs(section, context) == before
    for name in ("build", "dist", "venv", "node_modules"):
        (project / "src" / name).mkdir()
        (project / "src" / name / "a.py").touch()
        after = source.inputs(section, context)
        assert after != before
        before = after


def test_a_branch_stays_where_the_lock_has_it_until_something_else_is_asked_for(
    context: Context, tmp_path: Path
) -> None:
    first = make_repository(tmp_path / "repo")
    address = f"git+file://{tmp_path}/repo"
    locked = lock(context, f"thing @ {address}@main")
    assert locked["thing"].text("revision") == "main"
    assert "revision" not in lock(context, f"thing @ {address}")["thing"].origin
    (tmp_path / "repo" / "VERSION").write_text("2")
    git(tmp_path / "repo", "commit", "--quiet", "-am", "two")
    second = git(tmp_path / "repo", "rev-parse", "HEAD")
    git(tmp_path / "repo", "branch", "other")
    git(tmp_path, "clone", "--quiet", "repo", "fork/repo")

    again = replace(context, kept=tuple(locked.values()))
    assert lock(again, f"thing @ {address}@main") == locked
    context.blobs.path(locked["thing"].sha256).unlink()
    assert lock(again, f"thing @ {address}@main") == locked
    assert locked["thing"].text("commit") == first

    moved = [
        lock(context, f"thing @ {address}@main"),  # as an upgrade does: nothing is kept
        lock(again, f"thing @ {address}@other"),
        lock(again, f"thing @ {address}"),
        lock(again, f"thing @ git+file://{tmp_path}/fork/repo@main"),
    ]
    assert {found["thing"].text("commit") for found in moved} == {second}


def test_repositories_of_one_name_are_told_apart(context: Context, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        make_repository(tmp_path / name / "g.git")
    backend = tmp_path / "b" / "g.git" / "backend.py"
    for file in (backend, backend.with_name("pyproject.toml")):
        text = (
            file.read_text().replace("thing-%s", "other-%s").replace("Name: thing", "Name: other")
        )
        file.write_text(text.replace('name = "thing"', 'name = "other"'))
    git(backend.parent, "commit", "--quiet", "-am", "other")
    address = f"git+file://{tmp_path}"
    locked = lock(context, f"thing @ {address}/a/g.git", f"other @ {address}/b/g.git")
    assert set(locked) == {"thing", "other", "dep"}
    wheels = [locked["thing"], locked["other"]]
    section = WheelsSection(
        requirements=[f"thing @ {address}/a/g.git", f"other @ {address}/b/g.git"]
    )
    for wheel in wheels:
        context.blobs.path(wheel.sha256).unlink()
    paths = [context.blobs.path(wheel.sha256) for wheel in wheels]
    assert source.requests(wheels, section, context) == paths

    nameless = [f"{address}/a/g.git", f"{address}/b/g.git"]
    with pytest.raises(UsageError) as error:
        lock(context, *nameless)
    assert "requirements.0 and wheels.requirements.1" in str(error.value.problems)
    assert set(lock(context, nameless[0], nameless[0])) == {"thing", "dep"}
