"""One node of several: what `mirror verify --nodes` does in its stage `multi`, and no other stage.

    python -m tests.node '{"folder": ..., "group": {"nodes": 2, "node": 0, "master": ...}, ...}'

Writes what came of it to FOLDER/outcome.json: {"error": text} or {"ranks", "problems", "checks"}.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from mirror.errors import MirrorError
from mirror.verify import nodes, processes
from mirror.verify.launch import Job, Limits, launch
from mirror.verify.nodes import slurm
from mirror.verify.report import Check, Stage


def main(asked: dict[str, Any]) -> None:
    folder = Path(asked["folder"])
    if asked.get("slurm"):  # every task has the same command line
        folder /= f"node{os.environ['SLURM_NODEID']}-{os.environ['SLURM_LOCALID']}"
    folder.mkdir(parents=True)
    outcome: dict[str, Any]
    try:
        group = slurm.group(os.environ) if asked.get("slurm") else nodes.Group(**asked["group"])
        if group is None:
            raise SystemExit("this is one node")
        with (
            processes.nothing_left_behind(),
            nodes.together(
                group,
                digest=asked.get("digest", "d" * 64),
                bundle="small 1",
                say=lambda text: print(text, flush=True),
                patience=asked.get("patience", 120.0),
            ) as members,
        ):
            outcome = train(members, folder, asked)
    except MirrorError as error:
        outcome = {"error": str(error)}
    except KeyboardInterrupt:
        outcome = {"error": "interrupted"}
    (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


def train(members: nodes.Nodes, folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    members.facts = asked.get("facts", {})
    if reason := asked.get("withdraw"):
        members.withdraw(reason)
        stage = Stage("environment", (Check("torch", "fail", reason),))
        return {"checks": compared(members, [stage], folder)}
    limits = Limits(start=300, stall=asked.get("stall", 60.0))
    found: dict[str, Any] = {"ranks": [], "problems": []}
    for name in asked.get("runs", ["multi"]):
        job = Job(
            python=Path(sys.executable),
            folder=folder / name,
            processes=asked.get("processes", 1),
            gpu=False,
            arguments=("train", "--steps", str(asked.get("steps", 10)), "--batch", "24"),
            environ=dict(os.environ),
            steps=asked.get("steps", 10),
            nodes=members,
        )
        outcome = launch(job, limits=limits)
        found["problems"] += outcome.problems
        found["ranks"] += [
            [r["rank"], r["world_size"], r["host"], r["losses"][-1]]  # type: ignore[index]
            for r in outcome.results
        ]
    verdict = Check("run", "fail" if found["problems"] else "pass", "\n".join(found["problems"]))
    found["checks"] = compared(members, [Stage("multi", (verdict,))], folder)
    return found


def compared(members: nodes.Nodes, stages: list[Stage], folder: Path) -> list[list[str]]:
    return [[c.name, c.verdict, c.evidence] for c in members.compare(stages, str(folder))]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
