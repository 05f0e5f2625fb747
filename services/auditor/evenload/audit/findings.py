"""What an audit finds: verified, different, or unverifiable with a reason. Only `different` is a failure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["verified", "different", "unverifiable"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict on one snapshot or decision.

    Attributes:
        subject: `snapshot` or `decision`.
        where: which one, for people.
        reason: empty when verified, else a short stable reason.
        recorded, recomputed: both values of the first difference.
    """

    verdict: Verdict
    subject: str
    where: str
    reason: str = ""
    recorded: str = ""
    recomputed: str = ""


@dataclass(slots=True)
class Report:
    """Counts of findings, the first difference, and gaps in the log itself.

    Attributes:
        undecodable: records that could not be read, by topic.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    unverifiable: Counter[str] = field(default_factory=Counter)
    first_difference: Finding | None = None
    gaps: list[str] = field(default_factory=list)
    telemetry_events: int = 0
    undecodable: dict[str, int] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        """Take one finding in."""
        self.counts[finding.subject, finding.verdict] += 1
        if finding.verdict == "unverifiable":
            self.unverifiable[f"{finding.subject}: {finding.reason}"] += 1
        elif finding.verdict == "different" and self.first_difference is None:
            self.first_difference = finding

    @property
    def exit_code(self) -> int:
        """1 for a difference, 2 for a gap in the log, else 0."""
        if self.first_difference is not None:
            return 1
        return 2 if self.gaps else 0
