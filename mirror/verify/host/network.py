"""How processes of this host find each other: loopback, and the host's own name."""

from __future__ import annotations

import ipaddress
import re

from mirror.core.paths import shown
from mirror.verify.host.finding import Problem, judged
from mirror.verify.host.machine import Machine, words
from mirror.verify.report import Check

#: Longer than this no launcher should have to wait for a name; seconds.
PATIENCE = 2.0


def check_loopback(here: Machine) -> Check:
    """Whether processes of this machine can reach each other: every launch needs it."""
    reason = here.talks_to_itself()
    if not reason:
        return judged("loopback", ["127.0.0.1 can be reached"], [])
    what = f"127.0.0.1 cannot be reached: {shown(reason)}"
    advice = "Bring the loopback interface up: ip link set lo up."
    return judged("loopback", [], [Problem("fail", what, advice)])


def check_hostname(here: Machine) -> Check:
    """Whether the host's own name leads to an address of this host, and soon.

    gloo and torchrun look it up; mirror's own launches do without (they use 127.0.0.1). Asked
    through a program of its own: a resolver that waits cannot be ended from within.
    """
    name = (here.read("/proc/sys/kernel/hostname") or "").strip()
    if not name:
        return Check("hostname", "skip", "this host does not tell its name")
    said = here.tool("getent", "ahosts", name, limit=PATIENCE)
    label = shown(name)
    cure = f"Write it into /etc/hosts: 127.0.0.1 {label}"
    if said is None:
        return Check("hostname", "skip", f"{label}: {words(said, 'getent')} to ask for its address")
    if said.code is None:
        what = f"{label} is not resolved within {PATIENCE:g} s: gloo and torchrun hang"
        return judged("hostname", [], [Problem("warn", what, cure)])
    addresses = list(
        dict.fromkeys(filter(_address, (line.split()[0] for line in _lines(said.out))))
    )
    if not addresses:
        what = f"{label} does not resolve: gloo and torchrun hang, or end with an error"
        return judged("hostname", [], [Problem("warn", what, cure)])
    fact = f"{label} is {', '.join(addresses)}"
    own = _own(here)
    strange = [a for a in addresses if own and not _loopback(a) and _address(a) not in own]
    if len(strange) == len(addresses):
        what = f"{fact}, which is no address of this host: gloo cannot listen there"
        return judged("hostname", [], [Problem("warn", what, cure)])
    if all(map(_loopback, addresses)):
        fact += "; ranks on other hosts cannot use that"
    return judged("hostname", [fact], [])


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None


def _loopback(text: str) -> bool:
    found = _address(text)
    return found is not None and found.is_loopback


def _own(here: Machine) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address | None]:
    """This host's addresses, as the kernel's routing tables have them; empty where it has none."""
    old = re.findall(r"\|-- (\S+)\n\s+/32 host LOCAL", here.read("/proc/net/fib_trie") or "")
    new = re.findall(r"(?m)^([0-9a-f]{32}) ", here.read("/proc/net/if_inet6") or "")
    found = {_address(text) for text in old}
    return found | {ipaddress.IPv6Address(int(text, 16)) for text in new}
