"""Machines with NVSwitch: is the fabric set up? Without it CUDA starts on no GPU (error 802)."""

from __future__ import annotations

import re

from mirror.core.paths import shown
from mirror.verify.host.drivers import DEVICES
from mirror.verify.host.finding import Problem, grouped, judged, of
from mirror.verify.host.health import Cards
from mirror.verify.host.machine import Machine, container
from mirror.verify.report import Check

_SERVICE = ("systemctl", "is-active", "nvidia-fabricmanager")
#: In lspci's list: by name, or by number where its list of names is older than the switch.
_SWITCH = re.compile(r"(?m)^.*\[0680\]: .*(?:NVSwitch|\[10de:(?:1ac2|1af1|22a3)\]).*$")
_START = (
    "As root: systemctl enable --now nvidia-fabricmanager, of exactly the driver's version. "
    "In a virtual machine its host does that."
)


def check(here: Machine, cards: Cards) -> Check | None:
    """The fabric as the GPUs see it (Hopper and newer tell), and the service that sets it up.

    None on a machine without NVSwitch.
    """
    said = here.tool(*DEVICES)
    switches = len(_SWITCH.findall(said.out)) if said else 0
    attached = [(gpu, card) for gpu, card in cards if card.fabric_state]
    if not switches and not attached:
        return None
    problems = []
    waiting = [(g.number, c.fabric_state) for g, c in attached if c.fabric_state != "Completed"]
    for line in grouped(waiting):
        what = f"{shown(line)}: the NVLink fabric is not set up, CUDA ends with error 802"
        problems.append(Problem("fail", what, _START))
    for gpu, card in attached:
        if card.fabric_state == "Completed" and card.fabric_status not in ("", "Success"):
            what = f"{of([gpu.number])}: the fabric's status is {shown(card.fabric_status)}"
            advice = "The log of nvidia-fabricmanager says more (journalctl -u, as root)."
            problems.append(Problem("warn", what, advice))
        if card.fabric_health:
            what = f"{of([gpu.number])}: the fabric is ill: {shown(', '.join(card.fabric_health))}"
            advice = "nvidia-smi -q (Fabric) and nvidia-smi nvlink -e say more; reset the GPUs."
            problems.append(Problem("warn", what, advice))
    facts = grouped(
        (g.number, f"{c.fabric_state}, {c.fabric_status or 'no status'}") for g, c in attached
    )
    if switches:
        facts.insert(0, f"{switches} NVSwitch{'es' if switches > 1 else ''}")
        service, problem = _service(here, told=bool(attached))
        facts += [service] if service else []
        problems += [problem] if problem else []
        if not attached and not service and not problem:
            evidence = f"{facts[0]}; whether Fabric Manager runs cannot be seen from here"
            return Check("nvswitch", "skip", evidence)
    return judged("nvswitch", facts, problems)


def _service(here: Machine, *, told: bool) -> tuple[str, Problem | None]:
    """What systemd says of Fabric Manager; where it cannot be asked, nothing.

    told: whether the GPUs themselves tell that the fabric is set up.
    """
    said = None if container(here) else here.tool(*_SERVICE, limit=5)
    state = said.out.strip() if said else ""
    if state in ("active", "activating", "reloading"):
        return f"nvidia-fabricmanager is {state}", None
    if state not in ("inactive", "failed", "deactivating"):
        return "", None
    what = f"nvidia-fabricmanager is {state}"
    if told:
        return "", Problem("warn", f"{what}: nobody looks after the fabric", _START)
    return "", Problem("fail", f"{what}: without it CUDA ends with error 802", _START)
