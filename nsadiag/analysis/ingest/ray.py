"""The documents of a job of Ray's, or of one of several launchers."""

from __future__ import annotations

from nsadiag.analysis.records import RayEvidence
from nsadiag.evidence.documents.actors import ActorWaits, RayJob
from nsadiag.evidence.documents.types import Gaps, read_value
from nsadiag.evidence.layout import RunDir

DOCUMENT = "ray.json"
ROLES = "roles.json"


def read_ray(run: RunDir, unfit: Gaps) -> RayEvidence | None:
    """None where the run directory is that of ranks; what does not fit goes to `unfit`."""
    document = next((name for name in (DOCUMENT, ROLES) if (run.path / name).is_file()), None)
    if document is None:
        return None
    job = read_value(RayJob, run.path / document, unfit) or RayJob(id="")
    found: list[dict[int, ActorWaits]] = []
    for capture in (1, 2):
        rows = {p.number: run.rank(p.number).capture(capture).path / "waits.json" for p in job.processes}
        found.append({n: w for n, path in rows.items() if (w := read_value(ActorWaits, path, unfit))})
    return RayEvidence(document=document, job=job, waited=found[0], waits=found[1])


def gaps_of(ray: RayEvidence) -> tuple[str, ...]:
    """Gaps that its own documents name."""
    return (*ray.job.gaps, *dict.fromkeys(gap for waits in ray.waits.values() for gap in waits.gaps))
