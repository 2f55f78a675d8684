"""Whether a bundle's signatures make it trusted here.

The rule, in full: each signature is checked over the exact bytes of the index, whoever made it, and
one that is wrong is fatal. It counts when its key is trusted, valid now and not revoked. As many
different people have to be behind those that count as the threshold says; several keys of a person
count once, and so does a key under several names. Where no key is trusted nothing has to be signed.

Nothing of the index but its bytes is looked at here. "Now" is this machine's clock: SSH signatures
hold no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.errors import TrustError
from mirror.trust import sshsig, store
from mirror.trust.keys import UnknownAlgorithm, WrongSignature
from mirror.trust.signers import Signer, written
from mirror.trust.sshsig import Signature
from mirror.trust.store import Trust


@dataclass(frozen=True, slots=True)
class Finding:
    """What a signature is worth. label: its key, for people; empty when it cannot be read.

    signer: whose line it counts for; None when it does not count, and then `why` says why not.
    """

    label: str
    fingerprint: str
    signer: Signer | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.signer is None:
            return f"{self.label or 'a signature'} does not count: {self.why}"
        validity = f", valid {self.signer.validity}" if self.signer.validity else ""
        return f"{shown(self.signer.name)}, {self.label} ({self.signer.place}{validity})"

    def to_json(self) -> Json:
        """For programs."""
        return {
            "key": self.fingerprint or None,
            "signer": self.signer.name if self.signer else None,
            "trusted_by": self.signer.place if self.signer else None,
            "why_not": self.why or None,
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """What a bundle's signatures are worth here.

    configured: whether any key is trusted here. threshold: how many people have to sign.
    """

    findings: tuple[Finding, ...]
    configured: bool
    threshold: int
    now: datetime

    @property
    def names(self) -> list[str]:
        """The people whose signatures count, each once."""
        return list(dict.fromkeys(f.signer.name for f in self.findings if f.signer))

    @property
    def trusted(self) -> bool:
        """Whether the bundle is signed as this machine demands."""
        return self.configured and len(self.names) >= self.threshold

    def lines(self) -> list[str]:
        """Whose signatures there are and what they are worth, for people."""
        if not self.findings:
            return ["not signed" + (", so not trusted here" if self.configured else _ANYBODY)]
        if not self.configured:
            made = ", ".join(f.label or f.why for f in self.findings)
            return [f"signed by {made}{_ANYBODY}"]
        text = [
            f"signed by {finding}" if finding.signer else str(finding) for finding in self.findings
        ]
        if not self.trusted:
            need = counted(self.threshold, "trusted signer")
            text.append(f"not trusted here: {len(self.names)} of {need} signed")
        if any(f.signer and (f.signer.after or f.signer.before) for f in self.findings):
            text.append(f"the clock here says {written(self.now)}")
        return text

    def to_json(self) -> Json:
        """For programs."""
        return {
            "trusted": self.trusted,
            "configured": self.configured,
            "threshold": self.threshold,
            "signers": list(self.names),
            "signatures": [finding.to_json() for finding in self.findings],
        }

    def record(self) -> Json:
        """For the audit log: what each signature was worth; "unsigned" where there is none."""
        if not self.findings:
            return "unsigned"
        return [
            {
                "key": finding.fingerprint or None,
                "signer": finding.signer.name if finding.signer else None,
                "verdict": "counts" if finding.signer else finding.why,
            }
            for finding in self.findings
        ]


_ANYBODY = " (no trusted keys are configured here: nothing says who made it)"


@dataclass(frozen=True, slots=True)
class Judge:
    """Looks at signatures before anything that they are over is believed.

    demand: whether a bundle that is not trusted is refused, and not only said to be so.
    """

    trust: Trust
    now: datetime
    demand: bool

    @property
    def strict(self) -> bool:
        """Whether a bundle without the signatures asked for is refused."""
        return self.demand and self.trust.configured

    def __call__(self, name: str, data: bytes, found: Sequence[tuple[str, bytes]]) -> Standing:
        """What the signatures over these bytes are worth.

        name: of the bundle, fit to be shown. found: where signatures are, and what is there.
        Raises TrustError for one that is wrong, and where they do not make the bundle trusted.
        """
        findings = tuple(
            self._finding(name, place, signature, data)
            for place, text in found
            for signature in _signatures(name, place, text)
        )
        standing = Standing(findings, self.trust.configured, self.trust.threshold, self.now)
        if self.strict and not standing.trusted:
            raise self._refusal(name, standing)
        return standing

    def _finding(
        self, name: str, place: str, signature: Signature | sshsig.Unreadable, data: bytes
    ) -> Finding:
        if isinstance(signature, sshsig.Unreadable):
            return Finding("", "", why=signature.why)
        label, fingerprint = signature.key.label, signature.key.fingerprint
        try:
            signature.require(data)
        except UnknownAlgorithm as error:
            return Finding(label, fingerprint, why=str(error))
        except WrongSignature as error:
            raise _wrong(name, place, f"{label}: {error}") from None
        if where := self.trust.revoked.get(fingerprint):
            if not self.trust.configured:
                raise TrustError(
                    f"{name} is signed with a key that is revoked here",
                    problems=[f"{label} ({where})"],
                )
            return Finding(label, fingerprint, why=f"its key is revoked ({where})")
        signer, why = self._signer(signature)
        return Finding(label, fingerprint, signer, why)

    def _signer(self, signature: Signature) -> tuple[Signer | None, str]:
        """Whose key it is, on the first line that lets it count; else why none does."""
        why = "nobody here trusts its key"
        for signer in self.trust.signers:
            if signer.key == signature.key:
                refusal = signer.refusal(self.now)
                if refusal is None:
                    return signer, ""
                why = f"{refusal} ({signer.place}; the clock here says {written(self.now)})"
        return None, why

    def _refusal(self, name: str, standing: Standing) -> TrustError:
        files = ", ".join(shown(str(file)) for file in self.trust.files)
        keys = f"keys are trusted here ({files})"
        if not standing.findings:
            return TrustError(
                f"{name} is not signed, and {keys}",
                hint="Have it signed where it was built: mirror sign BUNDLE --key KEY. A signature"
                " of its own, BUNDLE.sig, has to lie beside it.",
            )
        have = len(standing.names)
        need = f"{counted(standing.threshold, 'person')} must sign, {have} did"
        message = f"{name} is not signed by anybody who is trusted here"
        if have:
            message = f"{name} is not signed by enough people who are trusted here: {need}"
        return TrustError(
            message.replace("persons", "people"),
            problems=[*map(str, standing.findings), *self._files()],
            hint="Install only what you can trace. Where you know the signer by other means: mirror"
            " trust add KEY.pub",
        )

    def _files(self) -> Iterator[str]:
        for file in self.trust.files:
            place = shown(str(file))
            own = [s.name for s in self.trust.signers if s.place.startswith(f"{place}:")]
            if own:
                yield f"trusted in {place}: {', '.join(map(shown, dict.fromkeys(own)))}"


def judge_here(chosen: Path | None = None, *, demand: bool) -> Judge:
    """A judge by the keys that are trusted on this machine, or in the file that --trust names.

    Raises as `store.load` does.
    """
    return Judge(store.load(chosen), datetime.now(timezone.utc), demand)


def _signatures(name: str, place: str, text: bytes) -> list[Signature | sshsig.Unreadable]:
    try:
        return sshsig.read(text)
    except WrongSignature as error:
        raise _wrong(name, place, str(error)) from None


def _wrong(name: str, place: str, what: str) -> TrustError:
    return TrustError(
        f"{name} has a signature that is not right ({place})",
        problems=[what],
        hint="Send the bundle and its signature again. If that does not help, somebody has changed"
        " one of them: ask who signed it.",
    )
