"""Credentials reach the servers that want them, and nothing else: no file, message or process.

Each secret is a canary that occurs nowhere by chance. After every command all that it has written
and said, and what it started, is searched for each of them, as it stands and encoded.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

import pytest

from mirror.core.artifact import Json
from mirror.machine import this_python
from tests.channel_server import Served, served
from tests.conda_packages import DEMO_CHANNEL
from tests.e2e.test_verify import install as with_environment
from tests.faults.sockets import CHECKOUT, LACKING, MIRROR
from tests.hub.faults import corrupt, status
from tests.hub.hub import Hub
from tests.index import make_wheel, serve
from tests.terminals import Terminal

pytestmark = pytest.mark.skipif(bool(LACKING), reason=LACKING)
TINY = CHECKOUT / "manifests" / "tiny-llama"
#: What mirror needs on a server, besides installer and py-rattler.
_TOOL = ("click", "tqdm", "packaging", "segno", "pip", "uv")
_MANIFEST = """\
name: secret
version: "{version}"
target: {{python: "{python}", platform: linux-x86_64, glibc: "2.28"}}
wheels:
  requirements: [alpha, beta]
  resolver: {resolver}
  indexes: {{corp: {{url: "{corp}", only: [alpha]}}, inner: {{url: "{inner}", only: [beta]}}}}
conda: {{channels: ["http://{channel}/"], packages: [demo-notes]}}
models: [org/by-variable]
files: [{{path: mirror.yaml, to: m.yaml}}]
"""

#: What the resolver and what it starts are given, to reach indexes.
FOR_INDEXES = (
    *("netrc's login", "netrc's password", "the default index's password"),
    *("the other index's user", "the other index's password", "the proxy's password"),
)


def canary(kind: str, special: str = "/+~") -> str:
    """A secret of its own, with characters that addresses quote."""
    return f"{kind}{secrets.token_hex(8)}{special}x"


def forms(secret: str) -> dict[str, bytes]:
    """How a secret may stand somewhere, by what that is called."""
    found = {"plain": secret.encode(), "quoted": quote(secret, safe="").encode()}
    found["hex"] = secret.encode().hex().encode()
    for shift in range(3):  # whatever stands before it
        text = base64.b64encode(b"\0" * shift + secret.encode())
        found[f"base64, {shift}"] = text[shift + 1 : -4]
        found[f"base64 for addresses, {shift}"] = text[shift + 1 : -4].translate(
            bytes.maketrans(b"+/", b"-_")
        )
    return found


@dataclass
class Person:
    """A person with secrets, at a machine of her own.

    secrets: each by what it is. planted: the files she keeps them in. said: all that any command
    has said. started: the arguments and variables of all that was started, a pair each.
    """

    folder: Path
    secrets: dict[str, str]
    environment: dict[str, str]
    planted: list[Path] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    started: list[tuple[str, str]] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.folder / "project"

    def write(self, name: str, text: str) -> Path:
        """A file with secrets."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(text, encoding="utf-8")
        self.planted.append(path)
        return path

    def traced(self, *arguments: object) -> list[str]:
        line = ["strace", "-f", "-qq", "-v", "-s", "100000", "-e", "trace=execve"]
        line += ["-e", "signal=none", "-o", str(self.folder / "trace")]
        return [*line, *MIRROR, *map(str, arguments)]

    def do(self, *arguments: object, code: int = 0, **variables: str) -> str:
        """Run a command of mirror; returns what it said."""
        done = subprocess.run(
            self.traced(*arguments),
            cwd=self.project,
            env=self.environment | variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        said = done.stdout.decode(errors="replace")
        assert done.returncode == code, said
        self.note(said)
        return said

    def note(self, said: str) -> None:
        """Keep what was said and started."""
        self.said.append(said)
        trace = self.folder / "trace"
        for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
            if found := re.match(r"\d+ +execve\((.*\]), (\[.*\])", line):
                self.started.append((found[1], found[2]))
        trace.unlink()

    def leaks(self) -> list[str]:
        """Where a secret stands that should not, a line each."""
        found = [*self._in_files(), *self._in_words()]
        for what, secret in self.secrets.items():
            for form, wanted in forms(secret).items():
                for arguments, _ in self.started:
                    if wanted.decode() in arguments:
                        found.append(f"{what} ({form}) in the arguments {arguments[:100]}")
        return found

    def _in_words(self) -> Iterator[str]:
        for said in self.said:
            for what, secret in self.secrets.items():
                for form, wanted in forms(secret).items():
                    if wanted in said.encode():
                        yield f"{what} ({form}) was said: {said[-2000:]}"

    def _in_files(self) -> Iterator[str]:
        for path in sorted(self.folder.rglob("*")):
            name = str(path.relative_to(self.folder))
            data = name.encode()
            if path.is_file() and not path.is_symlink() and path not in self.planted:
                data += path.read_bytes()
                if path.suffix == ".gz":
                    data += gzip.decompress(path.read_bytes())
            for what, secret in self.secrets.items():
                for form, wanted in forms(secret).items():
                    if wanted in data:
                        yield f"{what} ({form}) in {name}"

    def given(self, but: Sequence[str] = ()) -> list[str]:
        """Which secrets were in the variables of what mirror started, but for these."""
        found = set()
        for arguments, variables in self.started:
            if ", ".join(f'"{part}"' for part in MIRROR) in arguments:
                continue  # what she started herself
            for what, secret in self.secrets.items():
                if what not in but and any(w.decode() in variables for w in forms(secret).values()):
                    found.add(f"{what}: {arguments[:200]}")
        return sorted(found)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    known = {
        "the token of HF_TOKEN": canary("hf_"),
        "the token in a file": canary("hf_"),
        "netrc's login": canary("login"),
        "netrc's password": canary("pass"),
        "the default index's password": canary("default"),
        "the other index's user": canary("user"),
        "the other index's password": canary("corp"),
        "the proxy's password": canary("proxy"),
        "the channel's token": canary("conda", "+~"),
        "the passphrase": canary("phrase", " +~"),
        "a key for something else": canary("cloud"),
    }
    folder = tmp_path.resolve()
    quoted = quote(known["the proxy's password"], safe="")
    proxy = f"http://proxy:{quoted}@127.0.0.1:9"
    variables = {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "MIRROR_CACHE": str(folder / "cache"),
        "UV_CACHE_DIR": str(folder / "uv"),
        "HF_HOME": str(folder / "hf"),
        "HF_TOKEN": known["the token of HF_TOKEN"],
        "UV_INDEX_CORP_USERNAME": known["the other index's user"],
        "UV_INDEX_CORP_PASSWORD": known["the other index's password"],
        "RATTLER_AUTH_FILE": str(folder / "auth.json"),
        "AWS_SECRET_ACCESS_KEY": known["a key for something else"],
        "HTTPS_PROXY": proxy,
        "HTTP_PROXY": proxy,
        "NO_PROXY": "127.0.0.1,localhost",
        "PYTHONPATH": str(CHECKOUT),
    }
    foreign = ("MIRROR_", "XDG_", "UV_", "PIP_", "HF_", "SSH_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    made = Person(folder, known, kept | variables)
    for name in ("home", "tmp", "project"):
        (folder / name).mkdir()
    login, password = known["netrc's login"], known["netrc's password"]
    made.write("home/.netrc", f"machine 127.0.0.1 login {login} password {password}\n")
    made.write("hf/token", known["the token in a file"])
    entry = {"CondaToken": known["the channel's token"]}
    made.write("auth.json", json.dumps({"127.0.0.1": entry}))
    return made


@dataclass
class World:
    """The servers: each wants one secret of the person. default, corp, inner: addresses."""

    hub: Hub
    channel: Served
    default: str
    corp: str
    inner: str

    def manifest(self, person: Person, resolver: str, version: int = 1) -> None:
        """Have the person's project ask for something of each."""
        text = _MANIFEST.format(
            version=version,
            python=this_python(),
            resolver=resolver,
            corp=self.corp,
            inner=self.inner,
            channel=self.channel.host,
        )
        (person.project / "mirror.yaml").write_text(text, encoding="utf-8")


@pytest.fixture
def world(person: Person, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    known, shelves = person.secrets, tmp_path_factory.mktemp("shelves")
    for shelf in ("default", "corp", "inner"):
        (shelves / shelf).mkdir()
    for name in _TOOL:
        make_wheel(shelves / "default", name, "99.0")
    make_wheel(shelves / "default", "installer", "1.0")
    rattler = metadata.version("py-rattler")
    make_wheel(shelves / "default", "py-rattler", rattler, tag="cp38-abi3-manylinux_2_17_x86_64")
    make_wheel(shelves / "corp", "alpha", "1.0", requires=["beta"])
    make_wheel(shelves / "inner", "beta", "1.0")
    inner = ":".join([known["netrc's login"], known["netrc's password"]])
    corp = ":".join([known["the other index's user"], known["the other index's password"]])
    default = "somebody:" + known["the default index's password"]
    with ExitStack() as stack:
        hub = stack.enter_context(Hub())
        for name, token in (("variable", "the token of HF_TOKEN"), ("file", "the token in a file")):
            hub.accounts[known[token]] = "read"
            hub.add_model(f"org/by-{name}", TINY, token=known[token])
        hub.add_model("org/gated", TINY, gated="nobody")
        token = "/t/" + known["the channel's token"]
        url = stack.enter_context(serve(shelves / "default", credentials=default))
        url = url.replace("127.0.0.1", "localhost")  # netrc has nothing for it
        password = quote(known["the default index's password"], safe="")
        person.environment["UV_DEFAULT_INDEX"] = url.replace("://", f"://somebody:{password}@")
        person.environment["HF_ENDPOINT"] = hub.url
        yield World(
            hub=hub,
            channel=stack.enter_context(served(DEMO_CHANNEL, token=token)),
            default=url,
            corp=stack.enter_context(serve(shelves / "corp", credentials=corp)),
            inner=stack.enter_context(serve(shelves / "inner", credentials=inner)),
        )


# -- what is done with them ----------------------------------------------------------------------


@pytest.mark.parametrize("resolver", ["uv", "pip-tools"])
def test_locking_and_building(person: Person, world: World, resolver: str) -> None:
    world.manifest(person, resolver)
    person.do("lock", "-v")
    person.do("build", "-v", "-o", "b.tar.gz")
    person.do("build", "--json", "-o", "b.tar.gz")
    world.manifest(person, resolver, version=2)
    person.do("build", "-v", "-o", "c.tar.gz", "--since", "b.tar.gz", "--volume-size", "1M")
    person.do("inspect", "b.tar.gz", "--files")
    person.do("inspect", "b.tar.gz", "--sbom")
    assert person.leaks() == []
    assert person.given(but=FOR_INDEXES) == []


def test_the_token_in_a_file(person: Person, world: World) -> None:
    text = "name: a\nversion: 1\nmodels: [org/by-file]\n"
    (person.project / "mirror.yaml").write_text(text, encoding="utf-8")
    del person.environment["HF_TOKEN"]
    person.do("build", "-v", "-o", "b.tar.gz")
    assert world.hub.gets("*by-file*")
    assert person.leaks() == []


def test_errors_of_every_kind(person: Person, world: World) -> None:
    """Refused, missing, changed, unreachable: each is said without a secret."""
    gone = "http://127.0.0.1:9"

    def model(name: str) -> None:
        text = f"name: a\nversion: 1\nmodels: [{name}]\n"
        (person.project / "mirror.yaml").write_text(text, encoding="utf-8")

    def refused(*expected: str, code: int = 4, **variables: str) -> None:
        command = ("build", "-o", "e.tar.gz", "-v", "--json")
        said = person.do(*command, code=code, **variables)
        assert any(text in said for text in expected), said
        (person.project / "mirror.lock.toml").unlink(missing_ok=True)

    model("org/gated")
    refused("gated", code=3)
    model("org/missing")
    refused("org/missing", code=3)
    model("org/by-file")  # which the token of HF_TOKEN does not open
    refused("org/by-file", code=3)
    model("org/by-variable")
    person.secrets["a wrong token"] = canary("hf_")
    refused("token", code=3, HF_TOKEN=person.secrets["a wrong token"])
    refused("127.0.0.1:9", HF_ENDPOINT=gone)
    refused("proxy", HF_ENDPOINT="https://hub.invalid")
    world.hub.inject(corrupt(100), "*model.safetensors")
    refused("sha256", "hash")
    world.hub.heal()
    world.hub.inject(status(403), "*model.safetensors")
    refused("403")
    world.hub.heal()
    for resolver in ("uv", "pip-tools"):
        world.manifest(person, resolver)
        person.secrets["a wrong password"] = canary("wrong")
        wrong = person.secrets["a wrong password"]
        refused("corp", UV_INDEX_CORP_PASSWORD=wrong)
        quoted = quote(wrong, safe="")
        address = world.default.replace("://", f"://somebody:{quoted}@")
        refused("default", UV_DEFAULT_INDEX=address)
        address = f"http://somebody:{quoted}@127.0.0.1:9/simple"
        refused("127.0.0.1:9", "default", UV_DEFAULT_INDEX=address)
    world.channel.token = "/t/another"
    refused("403")
    assert person.leaks() == []


def test_an_encrypted_key(person: Person, world: World) -> None:
    shutil.which("ssh-keygen") or pytest.skip("ssh-keygen is not installed")
    phrase = person.secrets["the passphrase"]
    key = person.folder / "key"
    # ssh-keygen has no other way to be told than an argument: it is none of ours.
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", phrase, "-f", key], check=True)
    person.planted.append(key)
    lines = key.read_text(encoding="ascii").splitlines()
    person.secrets["the private key"] = lines[len(lines) // 2]
    text = "name: a\nversion: 1\nmodels: [org/by-variable]\n"
    (person.project / "mirror.yaml").write_text(text, encoding="utf-8")
    command = person.traced("build", "-v", "-o", "b.tar.gz", "--key", key)
    with Terminal(command, cwd=person.project, environment=person.environment) as terminal:
        terminal.wait_for("Passphrase of")
        terminal.type(f"not {phrase}\n".encode())
        terminal.wait_for("Passphrase of", 2)
        terminal.type(f"{phrase}\n".encode())
        assert terminal.ended() == 0, terminal.screen
        person.note(terminal.screen)
    assert "signed with" in person.said[-1]
    person.do("build", "--json", "-o", "c.tar.gz", "--key", key, code=2)  # nobody to ask
    person.do("inspect", "b.tar.gz")
    assert person.leaks() == []
    assert person.given(but=FOR_INDEXES) == []


def test_on_the_server(person: Person, world: World) -> None:
    """Install, and a verify that fails: its logs and report tell no variable."""
    text = "name: a\nversion: 1\nmodels: [org/by-variable]\n"
    (person.project / "mirror.yaml").write_text(text, encoding="utf-8")
    person.do("build", "-o", "b.tar.gz")
    assert person.leaks() == []
    person.started.clear()
    root = person.folder / "root"
    person.do("install", "-v", "b.tar.gz", "--root", root)
    person.do("probe", "--root", root)
    wanted: dict[str, Json] = {"imports": ["not_there"], "steps": 12}
    with_environment(person.folder / "other", model=False, verify=wanted)
    person.do("verify", "-v", "--root", person.folder / "other", code=9)
    assert person.leaks() == []
    assert person.given() == []


def test_a_script_that_fails(person: Person, world: World) -> None:
    """A script has its user's variables, and nothing that mirror writes of it has."""
    with_environment(person.folder / "root", model=False)
    script = "import os\nassert os.environ['HF_TOKEN']\nraise SystemExit('failed')\n"
    (person.project / "train.py").write_text(script, encoding="utf-8")
    for more in ([], ["--processes", "2"]):
        command = ["run", "--root", person.folder / "root", *more, "--", "train.py"]
        person.do(*command, code=1)
    assert person.leaks() == []


def test_a_secret_would_be_found(person: Person) -> None:
    """In each of the places, in each form."""
    known = person.secrets["the proxy's password"]
    quoted = quote(known, safe="")
    pair = base64.b64encode(f"user:{known}".encode()).decode()
    for number, text in enumerate((known, quoted, pair)):
        (person.folder / f"log-{number}").write_text(f"a line {text}\n", encoding="utf-8")
    (person.folder / "b.tar.gz").write_bytes(gzip.compress(f"in a bundle {known}".encode()))
    person.said.append(f"error: http://{known}@host/")
    person.started.append((f'["curl", "-u", "{known}"]', f'["A={quoted}"]'))
    found = "\n".join(person.leaks())
    for place in ("log-0", "log-1", "log-2", "b.tar.gz", "was said", "in the arguments"):
        assert place in found
    assert person.given() == ["the proxy's password: " + person.started[0][0]]
