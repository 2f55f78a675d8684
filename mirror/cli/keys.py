"""The commands about keys and signatures: parse, call one use case, render."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirror.cli.options import PATH
from mirror.cli.options import trust as _trust
from mirror.errors import UsageError

if TYPE_CHECKING:
    from mirror.console import Console
    from mirror.trust.signing import SigningKey

key_option = click.option(
    "--key",
    "keys",
    metavar="KEY",
    multiple=True,
    help="Sign with this key: a private key's file, a public key's file whose private half is in an"
    " agent or on a token, or agent:COMMENT. Several may be given.",
)
_system = click.option("--system", is_flag=True, help="This machine's keys, in /etc/mirror.")


@click.option("--out", type=PATH, help="The file; else ~/.config/mirror/signing_key.")
@click.option("--no-passphrase", is_flag=True, help="Leave the private key unencrypted.")
@click.option("--comment", help="What the public key says of itself; else USER@HOST.")
def keygen(console: Console, out: Path | None, no_passphrase: bool, comment: str | None) -> None:
    """Make a key to sign bundles with.

    Any key of OpenSSH does as well: ssh-keygen makes them too, also on hardware tokens.
    """
    from mirror.core.paths import shown
    from mirror.trust import private, store

    path = out or store.person() / "signing_key"
    private.require_possible(path)
    passphrase = None if no_passphrase else _new_passphrase()
    public = private.make_key(path, passphrase, comment or private.usual_comment())
    half = shown(f"{path}.pub")
    console.result(
        [
            f"{shown(str(path))} is a new key, {public.label}",
            public.line,
            f"  sign:   mirror build --key {shown(str(path))}",
            f"  trust:  carry {half} to the server, and there: mirror trust add {half}",
        ],
        {
            "private": str(path),
            "public": f"{path}.pub",
            "fingerprint": public.fingerprint,
            "key": public.line,
            "encrypted": passphrase is not None,
        },
    )


@click.argument("bundle")
@key_option
@click.option(
    "--detached",
    is_flag=True,
    help="Into a file of its own, BUNDLE.sig, instead of writing the bundle again.",
)
def sign(console: Console, bundle: str, keys: tuple[str, ...], detached: bool) -> None:
    """Sign a bundle, besides those who have signed it.

    BUNDLE is a file, or one of its volumes: these are signed in files of their own.
    """
    from mirror import sign as use

    if not keys:
        raise UsageError("name the key to sign with: --key KEY", hint="mirror keygen makes one.")
    done = use.sign(bundle, open_keys(keys), console, detached=detached)
    console.result(done.lines(), done.to_json())


@click.argument("key")
@click.option("--name", help="Whose it is; else what the key says of itself.")
@click.option("--valid-after", metavar="DATE", help="Not before: 2026-12-31, or YYYYMMDDHHMM[Z].")
@click.option("--valid-before", metavar="DATE", help="Not after.")
@_system
@_trust
def add(
    console: Console,
    key: str,
    name: str | None,
    valid_after: str | None,
    valid_before: str | None,
    system: bool,
    trust: Path | None,
) -> None:
    """Trust a key: a .pub file, or its line in quotes."""
    from mirror.core.paths import shown
    from mirror.trust import store

    public = store.read_key(key)
    name = name or public.comment
    if not name:
        raise UsageError("the key does not say whose it is: name its owner with --name")
    place = store.signers_file(trust, system=system)
    signer = store.add(place, public, name, valid_after, valid_before)
    validity = f", {signer.validity}" if signer.validity else ""
    console.result(
        [f"{shown(name)} is trusted{validity}: {public.label}", f"  {signer.place}"],
        {"signer": name, "key": public.fingerprint, "place": signer.place},
    )


@_trust
def list_(console: Console, trust: Path | None) -> None:
    """List who is trusted, and until when."""
    from mirror.trust import listing, store

    known = listing.survey(store.load(trust))
    console.result(known.lines(), known.to_json())


@click.argument("who")
@click.option("--revoke", is_flag=True, help="Also list the key as revoked, for good.")
@_system
@_trust
def remove(console: Console, who: str, revoke: bool, system: bool, trust: Path | None) -> None:
    """Trust WHO no longer: a name, a fingerprint or a .pub file."""
    from mirror.core.paths import shown
    from mirror.trust import store

    place = store.signers_file(trust, system=system)
    gone = store.remove(place, who, revoke=revoke)
    state = "revoked" if revoke else "no longer trusted"
    console.result(
        [f"{shown(signer.name)} is {state}: {signer.key.label}" for signer in gone],
        [{"signer": s.name, "key": s.key.fingerprint, "revoked": revoke} for s in gone],
    )
    if not store.any_in(place):
        console.warn(f"{shown(str(place))} has no keys left: it asks for no signature any more")


@click.argument("number", type=click.IntRange(1, 99))
@_system
@_trust
def threshold(console: Console, number: int, system: bool, trust: Path | None) -> None:
    """Have NUMBER different people sign each bundle."""
    from mirror.core.paths import shown
    from mirror.trust import store

    place = store.signers_file(trust, system=system)
    store.require(place, number)
    who = "one of the trusted people" if number == 1 else f"{number} of the trusted people"
    console.result(
        [f"{who} must sign each bundle: {shown(str(place))}"],
        {"threshold": number, "file": str(place)},
    )


def open_keys(names: Sequence[str]) -> list[SigningKey]:
    """The keys of these names; whoever sits at the terminal is asked for passphrases."""
    from mirror.trust.private import Person
    from mirror.trust.signing import open_key

    person = Person(_passphrase, lambda text: click.echo(text, err=True))
    return [open_key(name, person) for name in dict.fromkeys(names)]


def _passphrase(what: str) -> str:
    _require_terminal("Give the key to an agent and sign with its .pub file, or use one without.")
    return str(click.prompt(what, hide_input=True, err=True))


def _new_passphrase() -> str:
    _require_terminal("A key without a passphrase: --no-passphrase.")
    what = "Passphrase of the new key"
    return str(click.prompt(what, hide_input=True, confirmation_prompt=True, err=True))


def _require_terminal(hint: str) -> None:
    try:
        with open("/dev/tty", "rb"):
            return
    except OSError:
        if not sys.stdin.isatty():
            raise UsageError("nobody is here to ask for a passphrase", hint=hint) from None
