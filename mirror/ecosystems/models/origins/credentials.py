"""Who asks a Hub: a token, found as the Hub's client finds it, or what netrc has for the host."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from mirror.errors import UsageError
from mirror.fetch.request import basic

#: The client's variables, the first that is set before the others and before its file.
_VARIABLES = ("HF_OIDC_RESOURCE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TOKEN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A token, or a user and password. Without any of them all fields are empty.

    header: the value of Authorization. source: where it comes from, for messages.
    name: what it is called there, "the token of HF_TOKEN".
    """

    header: str = field(default="", repr=False)
    source: str = ""
    name: str = ""

    @property
    def headers(self) -> dict[str, str]:
        """Headers for the Hub's own origin."""
        return {"Authorization": self.header} if self.header else {}


def find(endpoint: str) -> Credentials:
    """Those for the Hub at this address. Raises UsageError for a token that cannot be sent."""
    from huggingface_hub import constants, get_token

    variable = next((name for name in _VARIABLES if os.environ.get(name, "").strip()), None)
    source = variable or f"the file {constants.HF_TOKEN_PATH}"
    try:
        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    except Exception as error:  # noqa: BLE001 -- the client has several ways to a token
        raise UsageError(f"no token can be read from {source}: {type(error).__name__}") from None
    if not token:
        return _login(endpoint)
    if not _TOKEN.fullmatch(token):
        raise UsageError(f"what {source} holds is no token: it has a space, or more than ASCII")
    return Credentials(f"Bearer {token}", source, f"the token of {source}")


def _login(endpoint: str) -> Credentials:
    """What netrc has for the Hub's host."""
    from requests.utils import get_netrc_auth

    try:
        found = get_netrc_auth(endpoint)
    except ValueError:
        raise UsageError("netrc cannot be read: it is not UTF-8") from None
    if found is None:
        return Credentials()
    user, password = found
    if password.startswith("hf_"):  # the Hub takes its own tokens as such only
        return Credentials(f"Bearer {password}", "netrc", "the token of netrc")
    return Credentials(basic(user, password)["Authorization"], "netrc", "the login of netrc")
