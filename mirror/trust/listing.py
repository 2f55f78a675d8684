"""Who is trusted, told to people and programs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.trust.signers import Signer, written
from mirror.trust.store import SYSTEM, Trust, person


@dataclass(frozen=True, slots=True)
class Survey:
    """Whom this machine trusts at one time."""

    trust: Trust
    now: datetime

    def state(self, signer: Signer) -> str:
        """Why the key is of no use now; empty when it is."""
        if where := self.trust.revoked.get(signer.key.fingerprint):
            return f"its key is revoked ({where})"
        return signer.refusal(self.now) or ""

    @property
    def usable(self) -> list[str]:
        """The people who can sign now, each once."""
        found = (signer.name for signer in self.trust.signers if not self.state(signer))
        return list(dict.fromkeys(found))

    def lines(self) -> list[str]:
        """For people."""
        if not self.trust.configured:
            places = " and ".join(shown(str(folder)) for folder in (person(), SYSTEM))
            return [
                "no keys are trusted here: bundles need no signature",
                f"  looked in {places}",
                "  trust one: mirror trust add KEY.pub",
                *self._revoked(),
            ]
        text = []
        for signer in self.trust.signers:
            text.append(f"{shown(signer.name)}  {signer.key.label}")
            note = self.state(signer) or (f"valid {signer.validity}" if signer.validity else "")
            text.append(f"  {signer.place}" + (f"  {note}" if note else ""))
        number = self.trust.threshold
        text.append("one of them must sign" if number == 1 else f"{number} of them must sign")
        if len(self.usable) < number:
            text.append(f"  only {len(self.usable)} can now: no bundle can be installed")
        if any(signer.validity for signer in self.trust.signers):
            text.append(f"the clock here says {written(self.now)}")
        return [*text, *self._revoked()]

    def _revoked(self) -> list[str]:
        listed = {signer.key.fingerprint for signer in self.trust.signers}
        others = {key: at for key, at in self.trust.revoked.items() if key not in listed}
        return [f"revoked  {key}  {at}" for key, at in others.items()]

    def to_json(self) -> Json:
        """For programs."""
        return {
            "configured": self.trust.configured,
            "threshold": self.trust.threshold,
            "signers": [
                {
                    "signer": signer.name,
                    "key": signer.key.fingerprint,
                    "kind": signer.key.kind,
                    "valid_after": signer.after.isoformat() if signer.after else None,
                    "valid_before": signer.before.isoformat() if signer.before else None,
                    "place": signer.place,
                    "why_not": self.state(signer) or None,
                }
                for signer in self.trust.signers
            ],
            "revoked": dict(self.trust.revoked),
        }


def survey(trust: Trust) -> Survey:
    """Whom this machine trusts now, by its clock."""
    return Survey(trust, datetime.now(timezone.utc))
