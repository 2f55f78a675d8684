"""Where trusted keys are kept, changing them, and the verdict that follows."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from mirror.errors import MachineError, TrustError, UsageError
from mirror.trust import listing, store
from mirror.trust.judging import Judge, Standing
from mirror.trust.store import Trust
from tests import signing as made
from tests.signing import INDEX, Key

NOW = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)


class People:
    """Keys of some people, this person's settings and those of the machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.alice, self.bob, self.carol = (
            made.make(folder / name) for name in ("alice", "bob", "carol")
        )


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> People:
    return People(tmp_path_factory.mktemp("people"))


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("MIRROR_TRUST", raising=False)
    monkeypatch.setattr(store, "SYSTEM", tmp_path / "etc")


def trust(key: Key, name: str, place: Path | None = None, **time: str) -> None:
    store.add(place or store.signers_file(), key.public, name, **time)


def judged(*texts: bytes, demand: bool = True, chosen: Path | None = None) -> Standing:
    judge = Judge(store.load(chosen), NOW, demand)
    return judge("the bundle", INDEX, [(f"place {n}", text) for n, text in enumerate(texts)])


def refused(*texts: bytes) -> TrustError:
    with pytest.raises(TrustError) as caught:
        judged(*texts)
    assert caught.value.exit_code == 6
    return caught.value


# -- where --------------------------------------------------------------------------------------


def test_nobody_is_trusted_before_anybody_is() -> None:
    assert store.load() == Trust()
    assert not store.load().configured


def test_the_keys_of_the_person_and_of_the_machine_count_together(people: People) -> None:
    trust(people.alice, "alice")
    trust(people.bob, "bob", store.signers_file(system=True))
    found = store.load()
    assert [s.name for s in found.signers] == ["alice", "bob"]
    assert found.files == (store.person() / "allowed_signers", store.SYSTEM / "allowed_signers")


def test_the_larger_threshold_holds(people: People) -> None:
    for place, number in ((store.signers_file(), 1), (store.signers_file(system=True), 2)):
        trust(people.alice, "alice", place)
        store.require(place, number)
    assert store.load().threshold == 2


@pytest.mark.parametrize("way", ["option", "variable"])
def test_another_file_stands_in_place_of_both(
    people: People, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(people.alice, "alice")
    other = tmp_path / "signers"
    trust(people.bob, "bob", other)
    if way == "variable":
        monkeypatch.setenv("MIRROR_TRUST", str(other))
    found = store.load(other if way == "option" else None)
    assert [s.name for s in found.signers] == ["bob"]


def test_the_option_wins_over_the_variable(
    people: People, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust(people.alice, "alice", tmp_path / "a")
    monkeypatch.setenv("MIRROR_TRUST", str(tmp_path / "none"))
    assert store.load(tmp_path / "a").configured
    monkeypatch.setenv("MIRROR_TRUST", "")
    assert not store.load().configured


def test_a_file_that_is_asked_for_has_to_say_something(people: People, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        store.load(tmp_path / "none")
    (tmp_path / "git").write_text(f'a namespaces="git" {people.alice.public.line}\n')
    with pytest.raises(UsageError, match="has no key for bundles"):
        store.load(tmp_path / "git")


def test_a_file_with_a_mistake_lets_nothing_pass(people: People) -> None:
    trust(people.alice, "alice")
    place = store.signers_file()
    with open(place, "a", encoding="utf-8") as file:
        file.write("bob\n")
    error = refused(people.alice.sign(INDEX))
    assert error.problems == (f"{place}:2: it is no public key: KIND BASE64 COMMENT is the form",)


def test_a_file_that_everybody_can_write_is_not_relied_on(people: People) -> None:
    trust(people.alice, "alice")
    store.signers_file().chmod(0o666)
    assert "can be written by everybody" in refused(people.alice.sign(INDEX)).problems[0]


def test_a_file_that_cannot_be_read_is_not_taken_for_none(people: People) -> None:
    store.signers_file().mkdir(parents=True)
    assert "cannot be read" in refused().problems[0]


def test_a_file_without_end_is_not_read(people: People) -> None:
    trust(people.alice, "alice")
    with open(store.signers_file(), "ab") as file:
        file.truncate(2**23)
    assert "is longer than" in refused().problems[0]


# -- changing -----------------------------------------------------------------------------------


def test_adding_keeps_what_is_there_byte_for_byte(people: People, tmp_path: Path) -> None:
    place = tmp_path / "signers"
    before = f"# ours\r\n\n  bob   {people.bob.public.line}"
    place.write_bytes(before.encode())
    signer = store.add(place, people.alice.public, "alice", None, "2027-06-01")
    assert signer.place == f"{place}:4"
    after = place.read_bytes().decode()
    assert after.startswith(f"{before}\nalice ")
    assert after.endswith("alice\n")


def test_a_key_is_trusted_once(people: People) -> None:
    trust(people.alice, "alice")
    with pytest.raises(UsageError, match="is trusted already, as alice"):
        trust(people.alice, "mallory")


def test_removing_by_name_fingerprint_and_file(people: People) -> None:
    place = store.signers_file()
    for which in ("alice", people.alice.public.fingerprint, str(people.alice.half)):
        for name, key in (("bob", people.bob), ("alice", people.alice)):
            trust(key, name)
        [gone] = store.remove(place, which)
        assert gone.key == people.alice.public
        assert [s.name for s in store.load().signers] == ["bob"]
        store.remove(place, "bob")
        assert not store.load().configured
        assert not store.any_in(place)


def test_removing_somebody_unknown_names_who_is_known(people: People) -> None:
    trust(people.alice, "alice")
    with pytest.raises(UsageError, match="mallory is not trusted") as caught:
        store.remove(store.signers_file(), "mallory")
    assert "alice" in caught.value.problems[0]


def test_all_keys_of_a_person_are_removed_and_revoked(people: People) -> None:
    trust(people.alice, "alice")
    trust(people.bob, "alice")
    assert len(store.remove(store.signers_file(), "alice", revoke=True)) == 2
    assert set(store.load().revoked) == {
        people.alice.public.fingerprint,
        people.bob.public.fingerprint,
    }
    trust(people.alice, "alice")
    store.remove(store.signers_file(), "alice", revoke=True)
    listed = store.signers_file().with_name("revoked_keys").read_text(encoding="utf-8")
    assert len(listed.splitlines()) == 2


def test_a_threshold_is_set_and_set_anew(people: People) -> None:
    trust(people.alice, "alice")
    for number in (2, 3, 1):
        store.require(store.signers_file(), number)
        assert store.load().threshold == number
    assert len(store.signers_file().read_text(encoding="utf-8").splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{folder}/none.pub", "there is no public key in"),
        ("{folder}/alice", "is a private key"),
        ("{folder}", "there is no public key in"),
        ("ssh-ed25519 AAAA", "ends early"),
        ("ssh-dss AAAAB3NzaC1kc3M= x", "of the kind ssh-dss"),
    ],
)
def test_what_is_no_public_key(people: People, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        store.read_key(text.format(folder=people.folder))
    assert "PRIVATE" not in str(caught.value)


def test_a_public_key_in_a_file_or_in_quotes(people: People) -> None:
    assert store.read_key(str(people.alice.half)) == people.alice.public
    assert store.read_key(people.alice.public.line) == people.alice.public


def test_a_folder_that_cannot_be_written_is_said_to_be_so(people: People, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(MachineError, match="cannot be"):
        trust(people.alice, "alice", tmp_path / "file" / "signers")


# -- the verdict --------------------------------------------------------------------------------


def test_a_trusted_signature_and_why_it_is(people: People) -> None:
    trust(people.alice, "alice", before="20270601Z")
    standing = judged(people.alice.sign(INDEX))
    assert standing.trusted
    line, clock = standing.lines()
    assert line == (
        f"signed by alice, ED25519 {people.alice.public.fingerprint}"
        f" ({store.signers_file()}:1, valid until 2027-06-01 00:00 UTC)"
    )
    assert clock == "the clock here says 2026-12-01 12:00 UTC"


def test_where_nobody_is_trusted_nothing_is_demanded(people: People) -> None:
    assert judged(b"").lines() == [
        "not signed (no trusted keys are configured here: nothing says who made it)"
    ]
    [line] = judged(people.alice.sign(INDEX)).lines()
    assert line.startswith(f"signed by ED25519 {people.alice.public.fingerprint} (no trusted keys")
    assert not judged(people.alice.sign(INDEX)).trusted


def test_a_wrong_signature_is_fatal_even_where_nobody_is_trusted(people: People) -> None:
    for demand in (True, False):
        with pytest.raises(TrustError, match="has a signature that is not right"):
            judged(people.alice.sign(INDEX + b"x"), demand=demand)


def test_a_wrong_signature_is_fatal_beside_a_right_one(people: People) -> None:
    trust(people.alice, "alice")
    right, wrong = people.alice.sign(INDEX), people.bob.sign(b"another index")
    for texts in ((right, wrong), (right + wrong,), (wrong + right,)):
        assert people.bob.public.fingerprint in refused(*texts).problems[0]


def test_an_unknown_signer_counts_for_nothing_and_is_named(people: People) -> None:
    trust(people.alice, "alice")
    error = refused(people.bob.sign(INDEX))
    assert "not signed by anybody who is trusted here" in error.message
    assert error.problems == (
        f"ED25519 {people.bob.public.fingerprint} does not count: nobody here trusts its key",
        f"trusted in {store.signers_file()}: alice",
    )
    assert judged(people.bob.sign(INDEX), people.alice.sign(INDEX)).names == ["alice"]


def test_an_expired_key_and_one_of_the_future(people: People) -> None:
    trust(people.alice, "alice", before="20261101Z")
    assert "its key was valid until 2026-11-01" in refused(people.alice.sign(INDEX)).problems[0]
    store.remove(store.signers_file(), "alice")
    trust(people.alice, "alice", after="20270101Z")
    said = refused(people.alice.sign(INDEX)).problems[0]
    assert "its key is not valid before 2027-01-01" in said
    assert "the clock here says 2026-12-01 12:00 UTC" in said


def test_a_key_that_was_prolonged_on_a_second_line(people: People, tmp_path: Path) -> None:
    line = people.alice.public.line
    text = f'alice valid-before="20260101Z" {line}\nalice valid-before="20280101Z" {line}\n'
    (tmp_path / "signers").write_text(text, encoding="utf-8")
    assert judged(people.alice.sign(INDEX), chosen=tmp_path / "signers").trusted


@pytest.mark.parametrize("where", ["beside", "person", "machine"])
def test_a_revoked_key_whichever_file_of_keys_is_asked_for(
    people: People, where: str, tmp_path: Path
) -> None:
    chosen = tmp_path / "signers"
    trust(people.alice, "alice", chosen)
    folder = {"beside": tmp_path, "person": store.person(), "machine": store.SYSTEM}[where]
    folder.mkdir(parents=True, exist_ok=True)
    revoked = folder / "revoked_keys"
    revoked.write_text(f"{people.alice.public.fingerprint}\n", encoding="utf-8")
    with pytest.raises(TrustError) as caught:
        judged(people.alice.sign(INDEX), chosen=chosen)
    assert f"its key is revoked ({revoked}:1)" in caught.value.problems[0]


def test_a_revoked_key_where_nobody_is_trusted(people: People) -> None:
    trust(people.alice, "alice")
    store.remove(store.signers_file(), "alice", revoke=True)
    assert "is signed with a key that is revoked" in refused(people.alice.sign(INDEX)).message


def test_a_revoked_key_does_not_spoil_what_others_have_signed(people: People) -> None:
    trust(people.alice, "alice")
    trust(people.bob, "bob")
    store.remove(store.signers_file(), "bob", revoke=True)
    standing = judged(people.alice.sign(INDEX), people.bob.sign(INDEX))
    assert standing.names == ["alice"]
    assert "revoked" in standing.lines()[1]


def test_two_of_three_people(people: People) -> None:
    for name, key in (("alice", people.alice), ("bob", people.bob), ("carol", people.carol)):
        trust(key, name)
    store.require(store.signers_file(), 2)
    alice, bob, carol = (k.sign(INDEX) for k in (people.alice, people.bob, people.carol))
    for texts in ((alice, bob), (bob + carol,), (carol, alice, bob)):
        assert judged(*texts).trusted
    few: list[list[bytes]] = [[alice], [alice, alice], [alice + alice], [b""], []]
    for some in few:
        assert refused(*some).hint
    assert (
        judged(alice, demand=False).lines()[-1] == "not trusted here: 1 of 2 trusted signers signed"
    )
    assert "2 people must sign, 1 did" in refused(alice).message


def test_two_signatures_of_one_key_are_one_persons(people: People, tmp_path: Path) -> None:
    ecdsa = made.make(tmp_path / "dave", "ecdsa")  # signs differently each time
    trust(ecdsa, "dave")
    store.require(store.signers_file(), 2)
    first, second = ecdsa.sign(INDEX), ecdsa.sign(INDEX)
    assert first != second
    assert "2 people must sign, 1 did" in refused(first, second).message


def test_two_keys_of_one_person_count_once(people: People) -> None:
    trust(people.alice, "alice")
    trust(people.bob, "alice")
    store.require(store.signers_file(), 2)
    refused(people.alice.sign(INDEX), people.bob.sign(INDEX))


def test_one_key_under_two_names_counts_once(people: People, tmp_path: Path) -> None:
    line = people.alice.public.line
    text = f"# mirror: threshold 2\nalice {line}\nalso-alice {line}\n"
    (tmp_path / "signers").write_text(text, encoding="utf-8")
    with pytest.raises(TrustError):
        judged(people.alice.sign(INDEX) * 2, chosen=tmp_path / "signers")


def test_an_unknown_algorithm_counts_for_nothing_and_is_named(people: People) -> None:
    trust(people.alice, "alice")
    later = made.armoured_kind("ssh-mldsa87")
    error = refused(later)
    assert "keys of the kind ssh-mldsa87 are none that mirror checks" in error.problems[0]
    assert judged(people.alice.sign(INDEX), later).trusted


def test_a_token_is_trusted_like_any_key() -> None:
    token = made.token_ed25519()
    store.add(store.signers_file(), token.public, "alice")
    assert judged(token.sign(INDEX)).trusted
    assert "ED25519-SK" in judged(token.sign(INDEX)).lines()[0]


# -- told ---------------------------------------------------------------------------------------


def test_the_list_says_who_can_sign_now(people: People) -> None:
    trust(people.alice, "alice", before="20260101Z")
    trust(people.bob, "bob")
    store.require(store.signers_file(), 2)
    found = listing.Survey(store.load(), NOW)
    text = "\n".join(found.lines())
    assert "its key was valid until 2026-01-01" in text
    assert "2 of them must sign\n  only 1 can now: no bundle can be installed" in text
    document: Any = found.to_json()
    assert document["signers"][0]["why_not"] == "its key was valid until 2026-01-01 00:00 UTC"
    assert document["signers"][1]["why_not"] is None


def test_the_list_of_nobody_says_where_it_looked() -> None:
    text = "\n".join(listing.survey(store.load()).lines())
    assert "bundles need no signature" in text
    assert str(store.person()) in text
