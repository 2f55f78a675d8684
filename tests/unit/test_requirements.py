"""One line that asks for packages: the value it gives, or the mistake that says what to write."""

from __future__ import annotations

from typing import Any

import pytest

from mirror.core.requirements import text
from mirror.core.requirements.indexes import normal, undeclared
from mirror.core.requirements.lines import entries
from mirror.core.requirements.values import (
    Constraint,
    Entry,
    Flag,
    GitUrl,
    Include,
    Index,
    Line,
    LocalProject,
    LocalWheel,
    Mistake,
    Note,
    Requirements,
    Specifier,
    WheelsOnly,
    WheelUrl,
)

SHA = "ab" * 32
HOST = "https://h.invalid"


def parsed(data: str | bytes, *, constraint: bool = False) -> list[Entry]:
    content = text.decode(data) if isinstance(data, bytes) else data
    found: list[Entry] = []
    for line in text.lines(content, lambda number: f"f.txt:{number}"):
        found += entries(line, constraint=constraint) if isinstance(line, Line) else [line]
    return found


def one(data: str, **how: bool) -> Entry:
    (entry,) = parsed(data, **how)
    return entry


def mistake(data: str, **how: bool) -> str:
    entry = one(data, **how)
    assert isinstance(entry, Mistake), entry
    return str(entry)


@pytest.mark.parametrize(
    ("line", "name", "written"),
    [
        ("torch", "torch", "torch"),
        ("Torch==2.0.1+cu118", "torch", "Torch==2.0.1+cu118"),
        ("sacrebleu >= 1.4.12, <2", "sacrebleu", "sacrebleu<2,>=1.4.12"),
        ("hf_transfer", "hf-transfer", "hf_transfer"),
        ("ray[tune, default]~=2.9", "ray", "ray[default,tune]~=2.9"),
        (
            "x; sys_platform == 'linux' and python_version < '3.12'",
            "x",
            'x; sys_platform == "linux" and python_version < "3.12"',
        ),
        ("backports.zstd", "backports-zstd", "backports.zstd"),
        ("discord.py", "discord-py", "discord.py"),
    ],
)
def test_a_specifier_keeps_all_that_it_says(line: str, name: str, written: str) -> None:
    assert one(line) == Specifier(name, written, "f.txt:1")


GIT = f"{HOST}/org/repo.git"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"git+{GIT}", {"name": None}),
        (f"git+{GIT}@v1.2", {"name": None, "revision": "v1.2"}),
        (f"git+{GIT}@feature/x#egg=Foo_Bar", {"name": "foo-bar", "revision": "feature/x"}),
        (f"-e git+{GIT}@main#egg=foo[a,b]", {"revision": "main", "extras": ("a", "b")}),
        (f"foo @ git+{GIT}@{'c' * 40}", {"revision": "c" * 40}),
        (f"foo@git+{GIT}@x ; python_version<'3.9'", {"marker": 'python_version < "3.9"'}),
        (f"foo[c] @ git+{GIT}#egg=foo[a]", {"extras": ("a", "c")}),
        (f"git+{GIT}@x#egg=foo&subdirectory=pkgs/foo", {"subdirectory": "pkgs/foo"}),
        (f"git+{GIT}; sys_platform == 'linux'", {"marker": 'sys_platform == "linux"'}),
        ("git+ssh://git@h.invalid/o/r.git@v1", {"url": "ssh://git@h.invalid/o/r.git"}),
        ("git+file:///srv/r.git@v1", {"url": "file:///srv/r.git", "revision": "v1"}),
    ],
)
def test_a_git_url_is_taken_apart(line: str, expected: dict[str, Any]) -> None:
    entry = parsed(line)[-1]
    assert isinstance(entry, GitUrl), entry
    for key, value in {"url": GIT, **expected}.items():
        assert getattr(entry, key) == value, key


def test_a_wheel_url_is_named_by_its_file() -> None:
    file = "flash_attn-2.8.3%2Bcu12torch2.6-cp311-cp311-linux_x86_64.whl"
    wheel = WheelUrl("flash-attn", f"{HOST}/r/{file}", "f.txt:1", hashes=(f"sha256:{SHA}",))
    assert one(f"{HOST}/r/{file}#sha256={SHA.upper()}") == wheel
    assert one(f"flash-attn @ {HOST}/r/{file} --hash=sha256:{SHA}") == wheel
    assert wheel.file == "flash_attn-2.8.3+cu12torch2.6-cp311-cp311-linux_x86_64.whl"
    marked = one(f'{HOST}/r/{file}; platform_system == "Linux"')
    assert isinstance(marked, WheelUrl)
    assert marked.marker == 'platform_system == "Linux"'


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (".", LocalProject(None, ".", "f.txt:1")),
        ("./", LocalProject(None, "./", "f.txt:1")),
        ("../sub[extra]", LocalProject(None, "../sub", "f.txt:1", extras=("extra",))),
        ("sub\\pkg", LocalProject(None, "sub/pkg", "f.txt:1")),
        ("foo @ ./sub", LocalProject("foo", "./sub", "f.txt:1")),
        ("file:///C:/work/pkg", LocalProject(None, "C:/work/pkg", "f.txt:1")),
        ("file:./a%20b", LocalProject(None, "./a b", "f.txt:1")),
        ("./dist/x-1-py3-none-any.whl", LocalWheel("x", "./dist/x-1-py3-none-any.whl", "f.txt:1")),
        ("x-1-py3-none-any.whl", LocalWheel("x", "x-1-py3-none-any.whl", "f.txt:1")),
        (
            "x @ file:///d/x-1-py3-none-any.whl",
            LocalWheel("x", "/d/x-1-py3-none-any.whl", "f.txt:1"),
        ),
        (
            "./my dist/x-1-py3-none-any.whl[a] ; os_name=='posix'",
            LocalWheel(
                "x",
                "./my dist/x-1-py3-none-any.whl",
                "f.txt:1",
                extras=("a",),
                marker='os_name == "posix"',
            ),
        ),
        ("-r sub/base.txt", Include("requirements", "sub/base.txt", "f.txt:1")),
        ("-rsub\\base.txt", Include("requirements", "sub/base.txt", "f.txt:1")),
        ('--constraint="my limits.txt"', Include("constraints", "my limits.txt", "f.txt:1")),
        ("pyproject.toml", Include("pyproject", "pyproject.toml", "f.txt:1")),
        (
            "../a/pyproject.toml[Train, eval_x]",
            Include("pyproject", "../a/pyproject.toml", "f.txt:1", ("eval-x", "train")),
        ),
        (
            "pyproject.toml:dev,docs",
            Include("pyproject", "pyproject.toml", "f.txt:1", (), ("dev", "docs")),
        ),
        ("-r pyproject.toml", Include("pyproject", "pyproject.toml", "f.txt:1")),
        ("environment.yml", Include("environment", "environment.yml", "f.txt:1")),
        ("envs/gpu.yaml", Include("environment", "envs/gpu.yaml", "f.txt:1")),
        ("--pre", Flag("prereleases", "f.txt:1")),
        ("--require-hashes", Flag("require_hashes", "f.txt:1")),
        ("--only-binary=Foo_x,:all:", WheelsOnly(("foo-x", ":all:"), "f.txt:1")),
        ("-i https://h.invalid/simple", Index("--index-url", f"{HOST}/simple", "f.txt:1")),
        ("--find-links=https://h.invalid/x", Index("--find-links", f"{HOST}/x", "f.txt:1")),
    ],
)
def test_what_a_line_asks_for(line: str, expected: Entry) -> None:
    assert one(line) == expected


@pytest.mark.parametrize("line", ["-e .", "-e.", "--editable=.", '--editable "."'])
def test_an_editable_project_is_carried_as_a_wheel_and_that_is_said(line: str) -> None:
    note, project = parsed(line)
    assert project == LocalProject(None, ".", "f.txt:1", editable=True)
    assert isinstance(note, Note)
    assert str(note) == "f.txt:1: -e . is carried as a wheel: no working copy goes along"


def test_options_that_mirror_follows_by_itself() -> None:
    assert parsed("--prefer-binary\n--only-binary :none:") == [WheelsOnly((), "f.txt:2")]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("torch=1.7.1", "one = is conda's: write =="),
        ("torch>=1.0.*", ".* goes with == and != only"),
        ("'torch==1.0'", "quotation marks are for shells"),
        ("torch torchvision", "write one requirement a line"),
        ("pip install torch", "is a command: write what stands behind `install`"),
        ("torch==1.0#old", "a comment begins with a space and #"),
        (f"x @ {HOST}/x-1-py3-none-any.whl; os_name=='nt'", "write a space before the ;"),
        ("torch ; nonsense", "is no requirement"),
        ("./x ; nonsense", "is no marker"),
        ("requirements.txt", "is a file and no package: write -r requirements.txt"),
        ("./sub/requirements.txt", "write -r ./sub/requirements.txt"),
        ("setup.py", "name its folder, ./"),
        ("poetry.lock", "is the file of another tool"),
        ("pyproject.toml[a]:dev", "write two items, pyproject.toml[a] and pyproject.toml:dev"),
        (f"-r {HOST}/r.txt", "can change without a trace: download it"),
        (f"{HOST}/environment.yml", "can change without a trace: download it"),
        ("x @ file:///${PROJECT_ROOT}/x", "${PROJECT_ROOT} is not filled in"),
        ("x @ torch:1", "is no address that packages come from"),
        ("x @ ab://c", "is no address that packages come from"),
        (f"./x{HOST}", "is neither a path nor an address"),
        (f"{HOST}/x-1.tar.gz", "is a source distribution: build a wheel"),
        ("./x-1.zip", "is a source distribution: build a wheel"),
        (f"{HOST}/o/r/archive/refs/tags/v1.zip", f"write NAME @ git+{HOST}/o/r@v1"),
        (f"r @ {HOST}/o/r/archive/main.tar.gz", f"write r @ git+{HOST}/o/r@main"),
        (f"{HOST}/o/r", f"is no wheel; a repository is written git+{HOST}/o/r"),
        (f"{HOST}/x.whl", "is no name of a wheel"),
        (f"y @ {HOST}/x-1-py3-none-any.whl", "is of x, not of y"),
        (f"{HOST}/x-1-py3-none-any.whl#md5={'0' * 32}", "none of sha256, sha384, sha512"),
        (f"{HOST}/x-1-py3-none-any.whl#sha256=00", "64 hexadecimal digits"),
        ("git+git://h.invalid/o/r.git", "write git+https://h.invalid/o/r.git"),
        ("git@h.invalid:o/r.git", "git+ssh://git@HOST/PATH"),
        ("git+ssh://git@h.invalid:o/r.git", "write / after the host"),
        ("git+ssh://-oProxyCommand=x/o/r", "is no address of a git repository"),
        (f"git+{GIT}@", "names no repository and revision"),
        (f"git+{GIT}@--upload-pack=x", "names no repository and revision"),
        (f"git+{GIT}#subdirectory=../x", "leads out of the repository"),
        (f"git+{GIT}#egg=foo==1.0", "write #egg=foo"),
        (f"bar @ git+{GIT}#egg=foo", "two names for one thing"),
        (f"git+{GIT} --hash=sha256:{SHA}", "has no hash to compare"),
        (
            f"{HOST}/x-1-py3-none-any.whl#sha256={SHA} --hash=sha256:{'0' * 64}",
            "the address and --hash name different hashes",
        ),
        ("hg+https://h.invalid/x", "only git repositories are carried"),
        ("file://server/x-1-py3-none-any.whl", "is on another machine"),
        ("numpy @ file:///croot/numpy_1/work/x", "write numpy==VERSION"),
        ("attrs @ file:///home/conda/feedstock_root/build_artifacts/a/work", "attrs==VERSION"),
        ("x @ file:///C:/b/abs_1/croot/x_1690906864587/work", "x==VERSION"),
        ("-e ./x-1-py3-none-any.whl", "is no project: take the -e out"),
        ("--no-binary numpy", "asks for a build from source"),
        ("numpy --no-binary :all:", "asks for a build from source"),
        ("--trusted-host h.invalid", "SSL_CERT_FILE"),
        ("--no-index", "named itself: ./dist/NAME.whl"),
        ("x --config-settings='a=b c'", "build that wheel yourself"),
        ("x --global-option --with-x", "build that wheel yourself"),
        ("flash-attn --no-build-isolation", "build that wheel yourself"),
        ("--use-feature=fast-deps", "is a setting of pip itself"),
        ("-f ./wheels", "name each wheel itself"),
        ("--no-cache-dir", "is no option that a requirements file can hold"),
        ("--pre torch", "stands behind an option: give it a line of its own"),
        ("torch --pre", "--pre stands behind torch: give it a line of its own"),
        ("-r", "--requirement lacks its value"),
        ("-r 'x", "a quotation mark is not closed"),
        (f"--hash=sha256:{SHA}", "--hash belongs to a requirement"),
        (f"git+{HOST}/${{REPO}}.git", "${REPO} is not filled in from the environment"),
        ("--extra-index-url ${INDEX}", "is no address"),
        (f"--extra-index-url {HOST}/${{TEAM}}/simple", "${TEAM} is not filled in"),
    ],
)
def test_every_mistake_says_where_and_what_to_write(line: str, advice: str) -> None:
    wrong = [str(entry) for entry in parsed(f"\n{line}") if isinstance(entry, Mistake)]
    assert any(entry.startswith("f.txt:2: ") and advice in entry for entry in wrong), wrong


def test_a_constraints_file_only_limits() -> None:
    limit = Constraint("numpy", "numpy<2", "f.txt:1", (f"sha256:{SHA}",))
    assert one(f"numpy<2 --hash=sha256:{SHA}", constraint=True) == limit
    assert one("-c more.txt", constraint=True) == Include("constraints", "more.txt", "f.txt:1")
    assert "write -c" in mistake("-r more.txt", constraint=True)
    for line in ("x[a]<2", "./x", f"x @ {HOST}/x-1-py3-none-any.whl", f"git+{GIT}"):
        assert "only names and versions stand there" in mistake(line, constraint=True)


def test_all_mistakes_of_a_line_are_named() -> None:
    found = parsed("torch=1 --no-binary torch --trusted-host h.invalid --frob")
    assert len([entry for entry in found if isinstance(entry, Mistake)]) == 4


@pytest.mark.parametrize(
    "line",
    [
        "git+https://me:S3CRET@h.invalid/o/r.git@v1#egg=r",
        "r @ git+https://S3CRET@h.invalid/o/r.git",
        "git+ssh://git:S3CRET@h.invalid/o/r.git",
        "git+https://me:S3/CRET@h.invalid/o/r.git",
        "https://me:S3CRET@h.invalid/x-1-py3-none-any.whl",
        "https://h.invalid/x.zip?token=S3CRET",
        "https://me:1#S3CRET@h.invalid/x.zip",
        "-e git+https://me:S3CRET@h.invalid/o/r.git oops",
        "--extra-index-url https://me:S3CRET@h.invalid/simple oops",
        "-r https://me:S3CRET@h.invalid/r.txt",
        "-f me:S3CRET@h.invalid/x",
        "torch https://me:S3CRET@h.invalid/x",
        "--frob=https://me:S3CRET@h.invalid/x",
    ],
)
def test_no_message_holds_a_secret(line: str) -> None:
    found = parsed(line)
    assert any(isinstance(entry, Mistake) for entry in found)
    assert "CRET" not in repr(found)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:S3CRET@h.invalid/x@v1?key=S3CRET#S3CRET", "https://h.invalid/x@v1?****"),
        ("https://me:1#S3CRET@h.invalid/x", "https:****"),
        ("https://me:1?S3CRET@h.invalid/x", "https:****"),
        ("https://me:S3/CRET@h.invalid/x", "https://****"),
        ("https://[::1]:80/x\u202e", "https://[::1]:80/x\\u202e"),
    ],
)
def test_how_an_address_is_shown(url: str, shown: str) -> None:
    assert text.shown_url(url) == shown


def test_credentials_of_an_index_are_left_out_and_that_is_said() -> None:
    note, index = parsed("--index-url https://${USER}:${TOKEN}@h.invalid/simple/")
    assert isinstance(note, Note)
    assert "netrc" in str(note)
    assert index == Index("--index-url", f"{HOST}/simple/", "f.txt:1")


@pytest.mark.parametrize(
    "data",
    [
        "torch==1.0 # é\r\n\r\n-r x.txt\r\n".encode(),
        "\ufefftorch==1.0\r\r-r x.txt".encode(),
        *(
            "\ufefftorch==1.0 # é\r\n\r\n-r x.txt".encode(name)
            for name in ("utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be")
        ),
        "# -*- coding: gb18030 -*-\ntorch==1.0 # 中文\n-r x.txt".encode("gb18030"),
    ],
)
def test_what_editors_and_shells_write_is_understood(data: bytes) -> None:
    kinds = [type(entry) for entry in parsed(data)]
    assert kinds == [Specifier, Include]
    assert [entry.where for entry in parsed(data)][1] == "f.txt:3"


@pytest.mark.parametrize(
    "data",
    [
        "torch # 中文".encode("gb18030"),
        "torch".encode("utf-16-le"),
        b"\x80\x81",
        b"# coding: nonsense\ntorch",
    ],
)
def test_what_is_no_text_is_not_guessed(data: bytes) -> None:
    with pytest.raises((UnicodeDecodeError, LookupError)):
        text.decode(data)


def test_continuations_and_comments() -> None:
    data = f"""\
# a comment \\
torch==1.0 \\
    --hash=sha256:{SHA} \\
    --hash=sha512:{"cd" * 64}
    # via x
num\\
py  # here
last \\"""
    first, second, third = parsed(data)
    hashes = (f"sha256:{SHA}", f"sha512:{'cd' * 64}")
    assert first == Specifier("torch", "torch==1.0", "f.txt:2", hashes)
    assert second == Specifier("numpy", "numpy", "f.txt:6")
    assert isinstance(third, Mistake)


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        ("torch # a comment \\\nnumpy", "swallows the next line"),
        ("torch \\ \n  --pre", "has spaces behind it"),
        ("torch # fine\u2028evil", "U+2028"),
        ("# fine\x0bevil", "U+000B"),
    ],
)
def test_nothing_disappears_or_appears_unseen(data: str, advice: str) -> None:
    assert advice in str(next(entry for entry in parsed(data) if isinstance(entry, Mistake)))


def test_an_index_must_be_declared() -> None:
    found = [
        Index("--extra-index-url", "https://download.pytorch.invalid/whl/cu128/", "r.txt:1"),
        Index("--find-links", "https://data.pyg.invalid/whl/torch-2.3.0+cu121.html", "r.txt:2"),
        Index("--index-url", "https://127.0.0.1:99/simple", "r.txt:3"),
        Index("tool.uv.sources.x", "https://x.invalid/simple?k=S3CRET", "p.toml:4", ("x",)),
    ]
    wrong = {index: str(error) for index, error in undeclared(found, [], {"torch"}).items()}
    torch, pyg, default, source = (wrong[index] for index in found)
    assert torch.startswith("r.txt:1: --extra-index-url https://download.pytorch.invalid/whl/cu128")
    assert "dependency confusion" in torch
    yaml = '{pytorch-cu128: {url: "https://download.pytorch.invalid/whl/cu128", only: [torch]}}'
    assert torch.endswith(f"under wheels:  indexes: {yaml}")
    assert "{pyg-torch-2.3.0-cu121: {url:" in pyg
    assert "UV_DEFAULT_INDEX" in default
    assert "only: [x]" in source
    assert "S3CRET" not in source
    same = ["https://me:pw@DOWNLOAD.pytorch.invalid:443/whl/cu128", *(i.url for i in found[1:])]
    assert undeclared(found, same, {"torch"}) == {}


def test_addresses_of_indexes_have_one_spelling() -> None:
    assert normal("https://me:pw@H.invalid:443/simple/") == "https://h.invalid/simple"
    assert normal("http://h.invalid:8080/simple") == "http://h.invalid:8080/simple"
    assert normal("https://h.invalid/a") != normal("https://h.invalid/A")


def test_hashes_are_by_name() -> None:
    a, b = (f"sha256:{digit * 64}" for digit in "ab")
    found = Requirements(
        specifiers=(Specifier("x", "x==1", "f:1", (a,)), Specifier("x", "x==2", "f:2", (b,))),
        constraints=(Constraint("y", "y<2", "f:3", (a,)), Constraint("z", "z<2", "f:4")),
    )
    assert found.hashes == {"x": {a, b}, "y": {a}}
