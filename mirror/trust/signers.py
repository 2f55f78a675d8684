"""Trusted keys in an `allowed_signers` file, and revoked ones in a list; as ssh-keygen(1) has them.

    # mirror: threshold 2
    alice namespaces="mirror-bundle",valid-before="20280101" ssh-ed25519 AAAA... alice@work
    "Bob Builder" ssh-ed25519 AAAA...

A line is for mirror unless its namespaces leave `mirror-bundle` out. A comment that begins with
`# mirror:` says how many different people have to sign; to ssh-keygen it is a comment. A list of
revoked keys has a public key or a fingerprint (SHA256:...) a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from mirror.core.paths import shown
from mirror.trust.keys import PublicKey, UnknownAlgorithm
from mirror.trust.sshsig import NAMESPACE

_DIRECTIVE = re.compile(r"#\s*mirror:(.*)")
_PRINCIPALS = re.compile(r'"([^"]+)"|([^\s"]+)')
#: One option and what follows it: a comma before the next one, or a space before the key.
_OPTION = re.compile(r'([A-Za-z-]+)(?:="([^"]*)")?(,|\s+)')
_TIME = re.compile(r"(\d{8})(?:(\d{4})(\d{2})?)?(Z?)")
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_KRL_MAGIC = b"SSHKRL\n\0"


@dataclass(frozen=True, slots=True)
class Signer:
    """A line of trusted keys.

    name: the principals, as they stand there. after, before: when the key is valid, None where that
    is not bounded. place: FILE:LINE.
    """

    name: str
    key: PublicKey
    after: datetime | None
    before: datetime | None
    place: str

    def refusal(self, now: datetime) -> str | None:
        """Why the key is of no use at this time; None when it is."""
        if self.after and now < self.after:
            return f"its key is not valid before {written(self.after)}"
        if self.before and now > self.before:
            return f"its key was valid until {written(self.before)}"
        return None

    @property
    def validity(self) -> str:
        """For people; empty when it is valid at any time."""
        parts = [f"from {written(self.after)}"] if self.after else []
        return " ".join([*parts, *([f"until {written(self.before)}"] if self.before else [])])


@dataclass(frozen=True, slots=True)
class SignersFile:
    """What a file of trusted keys says.

    threshold: how many people have to sign; None when it does not say. others: how many of its
    lines are for other purposes.
    """

    signers: tuple[Signer, ...]
    threshold: int | None
    others: int


class Mistakes(ValueError):  # noqa: N818
    """A file of keys that cannot be relied on; lines: every mistake, FILE:LINE and what it is."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def parse(data: bytes, source: str) -> SignersFile:
    """The trusted keys that a file holds; source: its name, for messages. Raises Mistakes."""
    signers: list[Signer] = []
    mistakes: list[str] = []
    thresholds: list[int] = []
    others = 0
    for place, line in _lines(data, source, mistakes):
        try:
            if line.startswith("#"):
                thresholds += _threshold(line)
            elif signer := _signer(line, place):
                signers.append(signer)
            else:
                others += 1
        except ValueError as error:
            mistakes.append(f"{place}: {error}")
    if len(thresholds) > 1:
        mistakes.append(f"{source}: the threshold stands there {len(thresholds)} times")
    if mistakes:
        raise Mistakes(mistakes)
    return SignersFile(tuple(signers), thresholds[0] if thresholds else None, others)


def parse_revoked(data: bytes, source: str) -> dict[str, str]:
    """The revoked keys of a list: fingerprint -> FILE:LINE. Raises Mistakes."""
    if data.startswith(_KRL_MAGIC):
        raise Mistakes(
            [f"{source}: a KRL (OpenSSH's binary form) is not read; write one key a line"]
        )
    found: dict[str, str] = {}
    mistakes: list[str] = []
    for place, line in _lines(data, source, mistakes):
        if line.startswith("#"):
            continue
        fingerprint = line.split()[0]
        try:
            if not _FINGERPRINT.fullmatch(fingerprint):
                fingerprint = PublicKey.from_line(line).fingerprint
            found.setdefault(fingerprint, place)
        except ValueError as error:
            mistakes.append(f"{place}: {error}")
    if mistakes:
        raise Mistakes(mistakes)
    return found


def written_line(name: str, key: PublicKey, after: str | None, before: str | None) -> str:
    """A line of trusted keys, without the line feed; after, before: as `parsed_time` takes them.

    Raises ValueError for a name or a time that no line can hold.
    """
    if not name or not name.isprintable() or re.search(r'[",*?!]', name) or name.startswith("#"):
        raise ValueError(f"{shown(name)!r} cannot name a signer: no quotes, commas, * ? ! or #")
    options = [f'namespaces="{NAMESPACE}"']
    for option, time in (("valid-after", after), ("valid-before", before)):
        if time is not None:
            parsed_time(time)
            options.append(f'{option}="{_compact(time)}"')
    principal = f'"{name}"' if " " in name else name
    comment = "".join(c if c.isprintable() else "?" for c in key.comment)
    plain = PublicKey(key.kind, key.blob, comment)
    return f"{principal} {','.join(options)} {plain.line}"


def is_threshold(line: str) -> bool:
    """Whether a line of a file says how many have to sign."""
    return bool(_DIRECTIVE.match(line.strip()))


def parsed_time(text: str) -> datetime:
    """A time as ssh-keygen has it, YYYYMMDD[HHMM[SS]][Z], or YYYY-MM-DD; in local time without Z.

    Raises ValueError for anything else.
    """
    found = _TIME.fullmatch(_compact(text))
    try:
        if found is None:
            raise ValueError
        day, minutes, seconds = found[1], found[2] or "0000", found[3] or "00"
        numbers = (day[:4], day[4:6], day[6:], minutes[:2], minutes[2:], seconds)
        local = datetime(*map(int, numbers))  # type: ignore[arg-type]  # noqa: DTZ001 -- below
        return local.replace(tzinfo=timezone.utc) if found[4] else local.astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"{shown(text)!r} is no time: write 2027-12-31 or 20271231[Z]") from None


def written(time: datetime) -> str:
    """A time for people: 2027-12-31 23:00 UTC."""
    return f"{time.astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"


def _compact(text: str) -> str:
    return re.sub(r"(\d{4})-(\d{2})-(\d{2})", r"\1\2\3", text)


def _lines(data: bytes, source: str, mistakes: list[str]) -> Iterator[tuple[str, str]]:
    """Each line that says something, and its place."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        mistakes.append(f"{source}: it is not text")
        return
    for number, line in enumerate(text.split("\n"), 1):
        if stripped := line.strip():
            yield f"{source}:{number}", stripped


def _threshold(comment: str) -> list[int]:
    """What a comment for mirror says. Raises ValueError for what is not understood."""
    directive = _DIRECTIVE.match(comment)
    if directive is None:
        return []
    found = re.fullmatch(r"\s*threshold\s+([1-9][0-9]?)\s*", directive[1])
    if found is None:
        raise ValueError(f"{shown(comment)} is not understood; `# mirror: threshold 2` is")
    return [int(found[1])]


def _signer(line: str, place: str) -> Signer | None:
    """The line's signer; None when it is for other purposes. Raises ValueError."""
    principals = _PRINCIPALS.match(line)
    if principals is None:
        raise ValueError("it is no line of trusted keys: NAME [OPTIONS] KIND KEY is the form")
    name = principals[1] or principals[2]
    options, rest = _options(line[principals.end() :].strip())
    if not _listed(NAMESPACE, options.get("namespaces", "*")):
        return None
    if "cert-authority" in options:
        raise ValueError(
            f"{shown(name)} is a certificate authority; mirror trusts keys, so name each signer's"
        )
    try:
        key = PublicKey.from_line(rest)
    except UnknownAlgorithm as error:
        raise ValueError(f"{shown(name)}: {error}") from None
    after, before = (
        parsed_time(options[option]) if option in options else None
        for option in ("valid-after", "valid-before")
    )
    return Signer(name, key, after, before, place)


def _options(text: str) -> tuple[dict[str, str], str]:
    """The options in front of a key, and the rest. Raises ValueError for one that is not known."""
    found: dict[str, str] = {}
    at, more = 0, False
    while (option := _OPTION.match(text, at)) and (option[2] is not None or _is_flag(option[1])):
        name = option[1].lower()
        if name not in ("cert-authority", "namespaces", "valid-after", "valid-before"):
            raise ValueError(f"the option {shown(option[1])} is not one that mirror knows")
        if name in found:
            raise ValueError(f"the option {name} is there twice")
        if (option[2] is None) != (name == "cert-authority"):
            raise ValueError(f"the option {name} is not written as it should be")
        found[name] = option[2] or ""
        at, more = option.end(), option[3] == ","
        if not more:
            break
    if more:
        raise ValueError("after a comma, another option is missing")
    return found, text[at:]


def _is_flag(word: str) -> bool:
    """Whether a word without a value is an option, not the kind of a key."""
    return word.lower() in ("cert-authority", "no-touch-required", "verify-required")


def _listed(name: str, patterns: str) -> bool:
    """Whether a pattern list (ssh_config(5), PATTERNS) has the name, and no ! in it excludes it."""
    positive = False
    for pattern in patterns.split(","):
        negated, text = pattern.startswith("!"), pattern.removeprefix("!")
        wild = re.escape(text).replace(r"\*", ".*").replace(r"\?", ".")
        if re.fullmatch(wild, name):
            if negated:
                return False
            positive = True
    return positive
