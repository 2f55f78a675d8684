"""mirror build --dry-run: sizes, what is here, what would be downloaded, and the room for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.build import Output, Plan, increments, is_built, make_plan, supply
from mirror.build.locking import preview
from mirror.build.proof import outstanding
from mirror.build.supply import Need
from mirror.bundle.splitting import Volumes
from mirror.core.artifact import Artifact, Json
from mirror.core.index import total_size
from mirror.core.paths import shown
from mirror.core.text import counted, human_size
from mirror.project import Project


@dataclass(frozen=True, slots=True)
class Share:
    """What one ecosystem has in the bundle.

    here: of what is needed, the artifacts on this machine; missing: the others. Of an increment,
    missing may hold what is not shipped and only read for the proof.
    """

    kind: str
    artifacts: Sequence[Artifact]
    shipped: Sequence[Artifact]
    here: Sequence[Artifact]
    missing: Sequence[Artifact]


@dataclass(frozen=True, slots=True)
class Forecast:
    """What `build` would do. lock: "fresh", or "stale" or "missing": then it would be written."""

    plan: Plan
    lock: str
    built: bool
    shares: Sequence[Share]
    needs: Sequence[Need]

    @property
    def fits(self) -> bool:
        """Whether there is room for it."""
        return not any(need.lacking for need in self.needs)


def forecast(
    project: Project, output: Output, since: Path | None, split: Volumes | None = None
) -> Forecast:
    """What `build` would do. Writes no lock and no bundle, and fetches none of its files.

    A lock that is missing or stale is resolved, and what that reads goes into the cache as ever.
    """
    base = increments.of(since, project.context) if since else None
    locked, state = preview(project)
    plan = make_plan(project, locked, output, base, split)
    built = is_built(project, plan)
    needed = [] if built else plan.needed(outstanding(project, locked, plan.index, base))
    missing = {a.path for a in needed if a.sha256 not in plan.derived and not _here(a, project)}
    missing -= _local(project, [a for a in needed if a.path in missing])
    shares = []
    for kind in dict.fromkeys(artifact.kind for artifact in plan.index.artifacts):
        wanted = [artifact for artifact in needed if artifact.kind == kind]
        shares.append(
            Share(
                kind,
                plan.index.of_kind(kind),
                [a for a in plan.index.shipped if a.kind == kind],
                [a for a in wanted if a.path not in missing],
                [a for a in wanted if a.path in missing],
            )
        )
    downloads = sum(total_size(share.missing) for share in shares)
    folder = plan.target.parent if isinstance(plan.target, Path) else None
    needs = [] if built else supply.needs(project, downloads, folder, plan.room)
    return Forecast(plan, state, built, shares, needs)


def _here(artifact: Artifact, project: Project) -> bool:
    return project.context.blobs.has(artifact.sha256, artifact.size)


def _local(project: Project, missing: Sequence[Artifact]) -> set[str]:
    """The paths of those that are files beside the manifest, in a channel's folder and so on."""
    found: set[str] = set()
    for kind, source, section in project.sections():
        asked = [a for a in missing if a.kind == kind]
        if kind in ("tool", "wheels"):  # to ask an index where its files are changes nothing here
            found |= {a.path for a in asked if a.text("place").startswith("file ")}
            continue
        # Files out of a wheel would be unpacked by asking.
        asked = [a for a in asked if not a.text("wheel")]
        places = source.requests(asked, section, project.context) if asked else []
        found |= {a.path for a, p in zip(asked, places, strict=True) if isinstance(p, Path)}
    return found


def lines(seen: Forecast) -> list[str]:
    """For people."""
    plan = seen.plan
    target = plan.index.target or "any machine"
    where = shown(str(plan.target)) if isinstance(plan.target, Path) else "the pipe"
    state = "is built already" if seen.built else "would be built"
    files = counted(len(plan.index.shipped), "file")
    if plan.split:
        files += f" in {counted(plan.volumes, 'volume')}"
    # Of a large file that has changed, the build may ship a part.
    most = "at most " if plan.base and not seen.built else ""
    text = [
        f"{where} {state}: {files}, {most}{human_size(plan.size)}, for {target}",
        f"  lock     {seen.lock}" + ("" if seen.lock == "fresh" else ", would be written"),
    ]
    if plan.base:
        text.append(f"  since    {plan.base.source}: {plan.base.summary(plan.index)}")
        if remark := plan.base.remark(plan.index):
            text.append(f"           {remark}")
    for share in seen.shares:
        line = f"  {share.kind:8} {counted(len(share.artifacts), 'file')},"
        line += f" {human_size(total_size(share.artifacts))}"
        if len(share.shipped) < len(share.artifacts):
            line += f"; {human_size(total_size(share.shipped))} shipped"
        if share.here:
            line += f"; {human_size(total_size(share.here))} here"
        if share.missing:
            count, size = counted(len(share.missing), "file"), total_size(share.missing)
            line += f"; {count}, {human_size(size)} to download or build"
        text.append(line)
    for need in seen.needs:
        text.append(f"  disk     {need}" + (": NOT ENOUGH" if need.lacking else ""))
    return text


def document(seen: Forecast) -> Json:
    """For programs; sizes in bytes."""
    plan = seen.plan
    return {
        "bundle": str(plan.target) if isinstance(plan.target, Path) else None,
        "built": seen.built,
        "lock": seen.lock,
        "digest": plan.index.digest,
        "base": plan.index.base,
        "bytes": plan.size,
        "volumes": plan.volumes,
        "files": len(plan.index.shipped),
        "kinds": {
            share.kind: {
                "files": len(share.artifacts),
                "bytes": total_size(share.artifacts),
                "shipped": total_size(share.shipped),
                "here": total_size(share.here),
                "missing": total_size(share.missing),
            }
            for share in seen.shares
        },
        "disk": [
            {"folder": str(n.folder), "for": n.what, "bytes": n.size, "free": n.free}
            for n in seen.needs
        ],
        "fits": seen.fits,
    }
