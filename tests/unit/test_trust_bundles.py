"""Bundles that are signed: when built, afterwards, in volumes; and what install makes of them."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import build, install, sign
from mirror.bundle import beside, layout
from mirror.bundle.arrival import list_standing
from mirror.bundle.opening import opened
from mirror.bundle.reader import Reader
from mirror.bundle.rewriting import write_signed
from mirror.bundle.splitting import Volumes, pack_volumes
from mirror.bundle.volumes import list_path
from mirror.core.progress import Quiet
from mirror.core.versions import is_older
from mirror.errors import BundleError, TrustError, UsageError
from mirror.planning import Wish
from mirror.project import open_project
from mirror.store.generations import Root
from mirror.trust import store
from mirror.trust.judging import judge_here
from mirror.trust.signing import SigningKey, open_key
from tests import bundles
from tests import signing as made
from tests.index import make_wheel, serve
from tests.signing import Key

FILES = {
    "files/a": b"hello\n",
    "files/empty": b"",
    "files/run.sh": b"exit\n" * 99,
    "files/m": random.Random(1).randbytes(9_000),
    "files/z": b"end",
}


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MIRROR_TRUST", raising=False)
    monkeypatch.setattr(store, "SYSTEM", tmp_path / "etc")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Key]:
    folder = tmp_path_factory.mktemp("keys")
    return {name: made.make(folder / name) for name in ("alice", "bob")}


def key(of: Key) -> SigningKey:
    return open_key(str(of.path), made.nobody())


class Case:
    """A bundle of some files, a root, and people."""

    def __init__(self, folder: Path, keys: dict[str, Key]) -> None:
        self.folder, self.alice, self.bob = folder, keys["alice"], keys["bob"]
        self.made = bundles.sources(folder / "in", FILES)
        self.bundle = folder / "b.tar.gz"
        self.data = self.made.pack(self.bundle)
        self.index = self.made.index.to_bytes()
        self.root = Root(folder / "root")

    def packed(self, *signers: Key) -> bytes:
        """The bytes that the writer makes of the index and these signatures."""
        signature = b"".join(signer.sign(self.index) for signer in signers)
        return replace(self.made, signature=signature).pack(self.folder / "packed")

    def sign(
        self, *signers: Key, detached: bool = False, bundle: Path | None = None
    ) -> sign.Signed:
        name = str(bundle or self.bundle)
        return sign.sign(name, [key(s) for s in signers], Quiet(), detached=detached)

    def install(self, bundle: Path | None = None, *, older: bool = False) -> install.Installed:
        names = [str(bundle or self.bundle)]
        return install.install(names, self.root, Wish(), Quiet(), allow_older=older)

    def names(self, bundle: Path | None = None) -> list[str]:
        """Whose signatures count."""
        judge = judge_here(demand=False)
        with opened([str(bundle or self.bundle)], Quiet(), judge) as [reader]:
            assert reader.standing
            return reader.standing.names

    def trust(self, *signers: Key) -> None:
        for signer in signers:
            store.add(store.signers_file(), signer.public, signer.path.name)

    def stamps(self) -> tuple[int, int, int]:
        """What changes when the bundle is written."""
        status = self.bundle.stat()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def left(self) -> list[str]:
        """What writing has left half-made."""
        return [path.name for path in self.folder.iterdir() if path.name.endswith(".tmp")]


@pytest.fixture
def case(tmp_path: Path, keys: dict[str, Key]) -> Case:
    return Case(tmp_path, keys)


# -- in the bundle ------------------------------------------------------------------------------


@pytest.mark.parametrize("small", [False, True])
def test_a_bundle_that_is_signed_later_is_the_one_that_is_signed_when_built(
    case: Case, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:  # every seam of the framing moves
        bundles.shrink(monkeypatch)
        case.data = case.made.pack(case.bundle)
    done = case.sign(case.alice)
    assert done.files == (case.bundle,)
    assert done.keys == (case.alice.public,)
    assert case.bundle.read_bytes() == case.packed(case.alice)
    assert not case.left()


def test_people_sign_one_after_the_other_or_together(case: Case) -> None:
    case.sign(case.alice)
    done = case.sign(case.bob)
    assert done.keys == (case.alice.public, case.bob.public)
    apart = case.bundle.read_bytes()
    case.bundle.write_bytes(case.data)
    case.sign(case.alice, case.bob)
    assert case.bundle.read_bytes() == apart == case.packed(case.alice, case.bob)
    case.trust(case.alice, case.bob)
    assert case.names() == ["alice", "bob"]


def test_who_has_signed_does_not_sign_again(case: Case) -> None:
    case.sign(case.alice)
    before = case.stamps()
    done = case.sign(case.alice, case.alice)
    assert done.files == ()
    assert case.stamps() == before
    case.sign(case.alice, detached=True)
    assert not beside.path(case.bundle).exists()


def test_a_signature_larger_than_a_block_of_the_tar_and_many_keys(
    case: Case, tmp_path: Path
) -> None:
    rsa = [made.make(tmp_path / f"rsa{number}", "rsa", "", "-b", "2048") for number in range(3)]
    case.sign(*rsa, case.alice)
    case.trust(*rsa)
    assert case.names() == ["rsa0", "rsa1", "rsa2"]
    with Reader.open(case.bundle) as reader:
        reader.check(Quiet())
        assert reader.signature.count(b"BEGIN SSH SIGNATURE") == 4


def test_no_more_signatures_than_are_read(case: Case, tmp_path: Path) -> None:
    ecdsa = made.make(tmp_path / "ecdsa", "ecdsa")
    many = b"".join(ecdsa.sign(case.index) for _ in range(16))
    replace(case.made, signature=many).pack(case.bundle)
    with pytest.raises(UsageError, match="at most 16 signatures"):
        case.sign(case.alice)


def test_a_signature_of_the_future_is_kept(case: Case) -> None:
    later = made.armoured_kind("ssh-mldsa44")
    replace(case.made, signature=later).pack(case.bundle)
    case.sign(case.alice)
    with Reader.open(case.bundle) as reader:
        assert reader.signature == later + case.alice.sign(case.index)
    case.trust(case.alice)
    assert case.names() == ["alice"]


def test_a_damaged_bundle_is_not_signed_and_stays_as_it_is(case: Case) -> None:
    wrong = bytearray(case.data)
    wrong[-3000] ^= 1
    case.bundle.write_bytes(wrong)
    with pytest.raises(BundleError, match="has not the sha256"):
        case.sign(case.alice)
    assert case.bundle.read_bytes() == wrong
    assert not case.left()


def test_a_bundle_whose_signature_is_wrong_is_not_signed(case: Case) -> None:
    replace(case.made, signature=case.bob.sign(b"other")).pack(case.bundle)
    with pytest.raises(TrustError, match="has a signature that is not right"):
        case.sign(case.alice)


def test_ctrl_c_leaves_the_bundle_as_it_is(case: Case) -> None:
    with Reader.open(case.bundle) as reader, pytest.raises(KeyboardInterrupt):
        write_signed(reader, b"", case.bundle, bundles.Interrupted())
    assert case.bundle.read_bytes() == case.data
    assert not case.left()


@pytest.mark.parametrize("name", ["-", "https://x.org/b.tar.gz"])
def test_only_files_are_signed(case: Case, name: str) -> None:
    with pytest.raises(UsageError, match="only a bundle in files"):
        sign.sign(name, [key(case.alice)], Quiet())


def test_a_link_is_followed_to_the_bundle(case: Case, tmp_path: Path) -> None:
    link = tmp_path / "link.tar.gz"
    link.symlink_to(case.bundle)
    case.sign(case.alice, bundle=link)
    assert link.is_symlink()
    assert case.bundle.read_bytes() == case.packed(case.alice)


# -- beside it ----------------------------------------------------------------------------------


def test_signatures_beside_a_bundle_move_no_byte_of_it(case: Case) -> None:
    before = case.stamps()
    done = case.sign(case.alice, detached=True)
    case.sign(case.bob, detached=True)
    assert case.stamps() == before
    assert done.files == (beside.path(case.bundle),)
    text = beside.path(case.bundle).read_bytes()
    assert text == case.alice.sign(case.index) + case.bob.sign(case.index)
    case.trust(case.alice, case.bob)
    assert case.names() == ["alice", "bob"]
    assert case.install().standing


def test_what_ssh_keygen_writes_beside_is_as_good(case: Case) -> None:
    beside.path(case.bundle).write_bytes(case.alice.sign(case.index))
    case.trust(case.alice)
    assert case.names() == ["alice"]


def test_signatures_in_and_beside_count_together(case: Case) -> None:
    case.sign(case.alice)
    case.sign(case.bob, detached=True)
    case.trust(case.alice, case.bob)
    store.require(store.signers_file(), 2)
    case.install()
    beside.path(case.bundle).unlink()
    with pytest.raises(TrustError, match="2 people must sign, 1 did"):
        case.install()


def test_all_that_is_in_a_folder_may_be_named(case: Case) -> None:
    case.sign(case.alice, detached=True)
    names = [str(case.bundle), str(beside.path(case.bundle))]
    for some in (names, names[::-1]):
        with opened(some, Quiet()) as readers:
            assert len(readers) == 1


def test_a_signature_left_from_another_build_is_named(case: Case) -> None:
    beside.path(case.bundle).write_bytes(case.alice.sign(b"an older index"))
    with pytest.raises(TrustError, match=r"is not right \(.*b\.tar\.gz\.sig\)"):
        case.install()


# -- in volumes ---------------------------------------------------------------------------------


def in_volumes(case: Case, signature: bytes = b"") -> Path:
    target = case.folder / "v.tar.gz"
    pack_volumes(case.made.index, signature, case.made.locate, target, Volumes(4000), Quiet())
    return target


@pytest.mark.parametrize("name", ["v.tar.gz.001", "v.tar.gz.volumes.json", "v.tar.gz.003"])
def test_volumes_are_signed_in_files_of_their_own(case: Case, name: str) -> None:
    target = in_volumes(case)
    before = {path: path.read_bytes() for path in case.folder.glob("v.tar.gz*")}
    done = case.sign(case.alice, bundle=case.folder / name)
    assert done.files == (beside.path(target), beside.path(list_path(target)))
    assert all(path.read_bytes() == data for path, data in before.items())
    case.trust(case.alice)
    assert case.names(case.folder / name) == ["alice"]
    listed = list_standing(list_path(target), judge_here(demand=True))
    assert listed.names == ["alice"]
    case.install(case.folder / name)
    assert case.sign(case.alice, bundle=case.folder / name).files == ()


def test_a_signed_list_of_volumes_that_was_changed(case: Case) -> None:
    target = in_volumes(case, case.alice.sign(case.index))
    case.sign(case.alice, bundle=list_path(target))
    place = list_path(target)
    place.write_bytes(place.read_bytes().replace(b'"recovery":[]', b'"recovery": []'))
    with pytest.raises(TrustError, match=r"v\.tar\.gz\.volumes\.json has a signature"):
        case.names(target.with_name("v.tar.gz.001"))


def test_the_signature_over_the_list_does_not_stand_for_the_bundle(case: Case) -> None:
    target = in_volumes(case)
    case.sign(case.alice, bundle=list_path(target))
    beside.path(target).unlink()
    case.trust(case.alice)
    with pytest.raises(TrustError, match="is not signed"):
        case.install(target.with_name("v.tar.gz.001"))


# -- built --------------------------------------------------------------------------------------


class Builder:
    """A project with a file, its index on loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").mkdir(parents=True)
        (folder / "data" / "large").write_bytes(bytes(range(256)) * 400)
        text = 'name: demo\nversion: "1"\nfiles: [{path: data/, to: ./}]\n'
        (folder / "m.yaml").write_text(text, encoding="utf-8")
        self.target = folder / "b.tar.gz"

    def build(self, *signers: Key, size: int = 0) -> build.Built:
        project = open_project(self.folder / "m.yaml", Quiet())
        split = Volumes(size) if size else None
        return build.build(project, self.target, None, split, [key(s) for s in signers])


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in ("click", "tqdm", "packaging", "segno", "pip"):
        make_wheel(shelf, name, "99.0")
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    with serve(shelf) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield Builder(tmp_path / "p")


def test_a_build_is_signed_and_stays_the_same(builder: Builder, keys: dict[str, Key]) -> None:
    first = builder.build(keys["alice"])
    assert first.changed
    assert first.size == builder.target.stat().st_size
    data = builder.target.read_bytes()
    again = builder.build(keys["alice"])
    assert not again.changed
    assert again.size == first.size
    builder.target.unlink()
    builder.build(keys["alice"])
    assert builder.target.read_bytes() == data
    with Reader.open(builder.target) as reader:
        assert reader.signature == keys["alice"].sign(reader.index_bytes)


def test_another_signer_is_another_build_of_the_same_index(
    builder: Builder, keys: dict[str, Key]
) -> None:
    plain = builder.build()
    signed = builder.build(keys["alice"])
    both = builder.build(keys["alice"], keys["bob"])
    assert plain.changed
    assert signed.changed
    assert both.changed
    assert plain.index == signed.index == both.index
    assert builder.build().changed  # no longer signed


def test_a_locked_key_is_asked_for_only_where_something_is_built(
    builder: Builder, tmp_path: Path
) -> None:
    locked = made.make(tmp_path / "locked", "ed25519", "secret")
    project = open_project(builder.folder / "m.yaml", Quiet())
    build.build(project, builder.target, keys=[open_key(str(locked.path), made.knows("secret"))])
    again = build.build(project, builder.target, keys=[open_key(str(locked.path), made.nobody())])
    assert not again.changed
    builder.target.unlink()
    with pytest.raises(UsageError, match="nobody can be asked"):
        build.build(project, builder.target, keys=[open_key(str(locked.path), made.nobody())])


def test_a_passphrase_is_asked_for_before_long_work_not_after_it(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(*about: object) -> None:
        raise AssertionError("it was fetched")

    monkeypatch.setattr(build, "_fetch", fetch)
    locked = made.make(tmp_path / "locked", "ed25519", "secret")
    with pytest.raises(UsageError, match="nobody can be asked"):
        builder.build(locked)


def test_volumes_are_signed_when_built_their_list_too(
    builder: Builder, keys: dict[str, Key]
) -> None:
    built = builder.build(keys["alice"], size=40_000)
    place = list_path(builder.target)
    assert built.volumes == len(list(builder.folder.glob("b.tar.gz.0*")))
    assert built.size == sum(p.stat().st_size for p in builder.folder.glob("b.tar.gz.0*"))
    assert beside.path(place).read_bytes() == keys["alice"].sign(place.read_bytes())
    assert not builder.build(keys["alice"], size=40_000).changed
    beside.path(place).unlink()
    assert builder.build(keys["alice"], size=40_000).changed
    (builder.folder / "data" / "large").write_bytes(b"new")
    builder.build(size=40_000)
    assert not beside.path(place).exists()


def test_a_new_build_takes_old_signatures_beside_it_away(
    builder: Builder, keys: dict[str, Key]
) -> None:
    builder.build()
    place = beside.path(builder.target)
    sign.sign(str(builder.target), [key(keys["alice"])], Quiet(), detached=True)
    builder.target.unlink()
    builder.build()  # the same index: they are still right
    assert place.exists()
    (builder.folder / "data" / "large").write_bytes(b"new")
    builder.build()
    assert not place.exists()
    place.write_bytes(b"notes of mine")
    (builder.folder / "data" / "large").write_bytes(b"newer")
    builder.build()
    assert place.read_bytes() == b"notes of mine"


# -- without mirror -----------------------------------------------------------------------------


def test_a_bundle_is_checked_with_tar_ssh_keygen_and_sha256sum_alone(
    builder: Builder, keys: dict[str, Key], tmp_path: Path
) -> None:
    """The commands are those of docs/trust.md."""
    page = Path(__file__).resolve().parents[2] / "docs" / "trust.md"
    _, _, rest = page.read_text(encoding="utf-8").partition("<!-- by hand -->\n```sh\n")
    script, _, _ = rest.partition("```")
    assert "ssh-keygen -Y verify" in script
    made.ssh_keygen()
    builder.build(keys["alice"])
    folder = tmp_path / "by-hand"
    folder.mkdir()
    line = f'alice namespaces="mirror-bundle" {keys["alice"].public.line}\n'
    (folder / "allowed_signers").write_text(line, encoding="utf-8")
    environment = os.environ | {"BUNDLE": str(builder.target), "NAME": "alice"}

    def by_hand() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-e", "-c", script],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    done = by_hand()
    assert done.returncode == 0, done.stderr
    assert 'Good "mirror-bundle" signature for alice' in done.stdout
    tar = bytearray(builder.target.read_bytes())
    tar[tar.index(bytes(range(256)) * 2)] ^= 1  # gzip will say so as well, if it is asked
    builder.target.write_bytes(tar)
    assert by_hand().returncode != 0


# -- older --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "other", "older"),
    [
        ("1", "2", True),
        ("1.9", "1.10", True),
        ("1.10", "1.9", False),
        ("2.0rc1", "2.0", True),
        ("run7", "run10", True),
        ("2026-02-01", "2026-11-30", True),
        ("2026-11-30", "2026-02-01", False),
        ("first", "second", None),
        ("a1", "b2", None),
        ("1-x", "2-x", True),
    ],
)
def test_which_of_two_versions_is_older(version: str, other: str, older: bool | None) -> None:
    assert is_older(version, other) is older


def version(case: Case, text: str, name: str = "demo") -> Path:
    index = replace(case.made.index, version=text, name=name)
    target = case.folder / f"{name}-{text}.tar.gz"
    replace(case.made, index=index).pack(target)
    return target


def test_an_older_bundle_does_not_replace_a_newer_one(case: Case) -> None:
    case.install(version(case, "1.10"))
    old = version(case, "1.9")
    with pytest.raises(
        TrustError, match=r"demo 1\.9 is older than 1\.10, which is in use"
    ) as caught:
        case.install(old)
    assert caught.value.exit_code == 6
    assert "--allow-older" in str(caught.value)
    with pytest.raises(TrustError):
        install.rehearse([str(old)], case.root, Wish(), Quiet())
    assert case.root.current().number == 1
    case.install(old, older=True)
    assert case.root.current().number == 2


def test_bundles_that_have_no_order_replace_each_other(case: Case) -> None:
    case.install(version(case, "2"))
    case.install(version(case, "1", "other"))
    case.install(version(case, "spring", "other"))
    case.install(version(case, "autumn", "other"))
    assert case.root.current().index().version == "autumn"


def test_what_layout_says_of_a_bundles_size_holds_with_signatures(case: Case) -> None:
    case.sign(case.alice)
    size = len(case.alice.sign(case.index))
    assert case.bundle.stat().st_size == layout.bundle_size(case.made.index, size)
