"""Files of trusted and of revoked keys: read as ssh-keygen reads them, and nothing is guessed."""

from __future__ import annotations

import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from mirror.trust import signers
from mirror.trust.keys import PublicKey
from mirror.trust.signers import Mistakes, SignersFile
from mirror.trust.sshsig import NAMESPACE
from tests import signing as made
from tests.signing import INDEX, Key

NOW = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return made.make(tmp_path_factory.mktemp("keys") / "alice")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Key:
    return made.make(tmp_path_factory.mktemp("keys") / "bob", "ecdsa")


def parsed(text: str) -> SignersFile:
    return signers.parse(text.encode(), "keys")


def mistakes(text: str) -> list[str]:
    with pytest.raises(Mistakes) as caught:
        parsed(text)
    return list(caught.value.lines)


def test_lines_of_every_form(key: Key, other: Key) -> None:
    a, b = key.public.line, other.public.line
    found = parsed(
        f"# people\n\nalice {a}\r\n"
        f'"Bob Builder" namespaces="git,mirror-*" {b}\n'
        f'  carol@x.org,dave@x.org   NAMESPACES="mirror-bundle",valid-after="20260101Z" {a}\n'
        f'eve valid-before="202706011200" {b}'
    )
    assert [(s.name, s.place) for s in found.signers] == [
        ("alice", "keys:3"),
        ("Bob Builder", "keys:4"),
        ("carol@x.org,dave@x.org", "keys:5"),
        ("eve", "keys:6"),
    ]
    assert found.threshold is None
    assert found.signers[1].key == other.public
    assert found.signers[2].after == datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert found.signers[3].before == datetime(2027, 6, 1, 12).astimezone()


@pytest.mark.parametrize(
    ("namespaces", "ours"),
    [
        ("mirror-bundle", True),
        ("*", True),
        ("mirror-?undle", True),
        ("file,mirror-bundle", True),
        ("file,git", False),
        ("", False),
        ("*,!mirror-bundle", False),
        ("!mirror-bundle,*", False),
        ("mirror", False),
        ("mirror-bundles", False),
        ("mirror.bundle", False),
    ],
)
def test_namespaces_say_which_lines_are_for_bundles_and_openssh_agrees(
    key: Key, namespaces: str, ours: bool, tmp_path: Path
) -> None:
    line = f'alice namespaces="{namespaces}" {key.public.line}\n'
    found = parsed(line)
    assert (len(found.signers), found.others) == ((1, 0) if ours else (0, 1))
    if namespaces:  # ssh-keygen takes the empty list for none
        assert verdict(tmp_path, line, key) is ours


def verdict(folder: Path, line: str, key: Key, *more: str) -> bool:
    """Whether ssh-keygen trusts the key by this line."""
    (folder / "signers").write_text(line, encoding="utf-8")
    (folder / "signature").write_bytes(key.sign(INDEX))
    command = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-I", "alice", *more]
    command += ["-f", str(folder / "signers"), "-s", str(folder / "signature")]
    done = subprocess.run(command, input=INDEX, capture_output=True, timeout=120, check=False)
    return done.returncode == 0


@pytest.mark.parametrize("days", [-2, -1, 1, 2])
@pytest.mark.parametrize("option", ["valid-after", "valid-before"])
def test_dates_are_as_openssh_has_them(key: Key, option: str, days: int, tmp_path: Path) -> None:
    now = datetime.now(timezone.utc)
    for form in ("%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S", "%Y%m%dZ", "%Y%m%d%H%MZ"):
        time = (now + timedelta(days=days)).strftime(form)
        line = f'alice {option}="{time}" {key.public.line}\n'
        usable = parsed(line).signers[0].refusal(now) is None
        assert usable is ((days < 0) == (option == "valid-after"))
        assert verdict(tmp_path, line, key) is usable


def test_a_key_is_refused_with_its_time(key: Key) -> None:
    line = f'alice valid-after="20260101Z",valid-before="20270101Z" {key.public.line}'
    [signer] = parsed(line).signers
    assert signer.refusal(NOW) is None
    assert signer.validity == "from 2026-01-01 00:00 UTC until 2027-01-01 00:00 UTC"
    early, late = NOW.replace(year=2025), NOW.replace(year=2027)
    assert signer.refusal(early) == "its key is not valid before 2026-01-01 00:00 UTC"
    assert signer.refusal(late) == "its key was valid until 2027-01-01 00:00 UTC"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("alice", "it is no public key"),
        ("alice ssh-ed25519", "it is no public key"),
        ("alice cert-authority KEY", "is a certificate authority"),
        ('alice cert-authority,namespaces="mirror-bundle" KEY', "is a certificate authority"),
        ("alice CERT-AUTHORITY KEY", "is a certificate authority"),
        ('alice valid-before="soon" KEY', "'soon' is no time"),
        ('alice valid-before="20261301" KEY', "'20261301' is no time"),
        ('alice valid-before="2026" KEY', "'2026' is no time"),
        ('alice valid-before="" KEY', "'' is no time"),
        ("alice valid-before KEY", "is no public key"),
        ('alice namespaces="a",namespaces="mirror-bundle" KEY', "there twice"),
        ('alice valid-befor="20260101" KEY', "the option valid-befor is not one"),
        ("alice no-touch-required KEY", "the option no-touch-required is not one"),
        ('alice namespaces="mirror-bundle", KEY', "another option is missing"),
        ('alice namespaces="mirror-bundle KEY', "is no public key"),
        ('"alice KEY', "no line of trusted keys"),
        ('"" KEY', "no line of trusted keys"),
        ("alice ssh-dss AAAA", "keys of the kind ssh-dss"),
        ("alice ssh-ed25519-cert-v01@openssh.com AAAA", "is a certificate"),
        ("KEY", "is no public key"),
    ],
)
def test_a_line_that_is_not_understood_is_named(key: Key, line: str, says: str) -> None:
    text = line.replace("KEY", key.public.line)
    [mistake] = mistakes(f"# first\n{text}\n")
    assert mistake.startswith("keys:2: ")
    assert says in mistake
    assert mistake.isprintable()


def test_what_stands_behind_a_key_is_a_comment(key: Key) -> None:
    assert len(parsed(f"alice {key.public.line} cert-authority\n").signers) == 1


def test_every_mistake_of_a_file_is_named_at_once(key: Key) -> None:
    found = mistakes(f"alice\nbob {key.public.line}\ncarol cert-authority {key.public.line}\n")
    assert [line.partition(" ")[0] for line in found] == ["keys:1:", "keys:3:"]


def test_certificate_authorities_for_other_purposes_are_nobodys_business(key: Key) -> None:
    found = parsed(f'*@x.org cert-authority,namespaces="git" {key.public.line}\n')
    assert (found.signers, found.others) == ((), 1)


def test_the_threshold_is_a_comment_to_openssh(key: Key, tmp_path: Path) -> None:
    text = f"# mirror: threshold 2\nalice {key.public.line}\n"
    assert parsed(text).threshold == 2
    assert verdict(tmp_path, text, key)


@pytest.mark.parametrize(
    "comment",
    ["# mirror: treshold 2", "# mirror: threshold", "# mirror: threshold 0", "#mirror:threshold x"],
)
def test_a_misspelled_threshold_is_no_threshold_of_one(key: Key, comment: str) -> None:
    [mistake] = mistakes(f"{comment}\nalice {key.public.line}\n")
    assert "is not understood; `# mirror: threshold 2` is" in mistake


def test_two_thresholds(key: Key) -> None:
    text = "# mirror: threshold 2\n# mirror: threshold 1\n"
    assert mistakes(text) == ["keys: the threshold stands there 2 times"]


def test_what_is_no_text() -> None:
    with pytest.raises(Mistakes, match="keys: it is not text"):
        signers.parse(b"\xff\xfe", "keys")


# -- written ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["alice", "Alice Liddell", "alice@x.org", "Łukasz"])
@pytest.mark.parametrize("before", [None, "2027-06-01", "20270601", "202706011200Z"])
def test_a_line_that_is_written_is_read_again(key: Key, name: str, before: str | None) -> None:
    line = signers.written_line(name, key.public, None, before)
    [signer] = parsed(line).signers
    assert (signer.name, signer.key) == (name, key.public)
    assert signer.before == (signers.parsed_time(before) if before else None)


@pytest.mark.parametrize("name", ["", "a,b", "*", "a?", "!a", '"', "#x", "a\nb", "a\tb", "\u202e"])
def test_names_that_would_mean_something_else(key: Key, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a signer"):
        signers.written_line(name, key.public, None, None)


def test_a_comment_cannot_begin_a_line_of_its_own(key: Key) -> None:
    hostile = PublicKey(key.public.kind, key.public.blob, "x\nmallory ssh-ed25519 AAAA")
    assert "\n" not in signers.written_line("alice", hostile, None, None)


# -- revoked ------------------------------------------------------------------------------------


def test_revoked_keys_by_key_and_by_fingerprint(key: Key, other: Key) -> None:
    text = f"# gone\n{key.public.line}\n{other.public.fingerprint} stolen in May\n"
    assert signers.parse_revoked(text.encode(), "revoked") == {
        key.public.fingerprint: "revoked:2",
        other.public.fingerprint: "revoked:3",
    }


def test_a_list_of_revoked_keys_is_one_to_openssh(key: Key, tmp_path: Path) -> None:
    line = f"alice {key.public.line}\n"
    revoked = tmp_path / "revoked"
    revoked.write_text(f"{key.public.line}\n", encoding="utf-8")
    assert not verdict(tmp_path, line, key, "-r", str(revoked))
    assert signers.parse_revoked(revoked.read_bytes(), "revoked")


def test_a_binary_list_of_openssh_is_refused_by_name(key: Key, tmp_path: Path) -> None:
    made.run(["ssh-keygen", "-k", "-f", str(tmp_path / "krl"), str(key.half)])
    with pytest.raises(Mistakes, match=r"a KRL \(OpenSSH's binary form\) is not read"):
        signers.parse_revoked((tmp_path / "krl").read_bytes(), "krl")


@pytest.mark.parametrize("line", ["SHA256:short", "MD5:aa:bb", "alice", "ssh-ed25519 AAAA"])
def test_a_revoked_key_that_is_not_understood(line: str) -> None:
    with pytest.raises(Mistakes, match=r"^revoked:1: "):
        signers.parse_revoked(line.encode(), "revoked")
