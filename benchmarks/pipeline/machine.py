"""What the operating system says of this machine and its processes. Linux only: it reads /proc.

CPU seconds of a process repeat within some percent on a busy machine, where wall times do not; every figure carries the
load average of its moment all the same.
"""

import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

QUIET_CORES = 0.4  # what others may use while something is measured that depends on wall time


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, all its threads, user and system; children not included."""
    # The name in the second field may hold blanks and brackets; what follows the last bracket has neither.
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mb(pid: int) -> float:
    """Resident memory of a process in 10^6 bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6


def load() -> float:
    """Load average of the last minute."""
    return round(os.getloadavg()[0], 1)


class Others:
    """How many cores others used (other processes, and other machines on this host: steal) since this was made."""

    def __init__(self) -> None:
        self._start_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_s()

    def cores(self) -> float:
        """Cores in use by others; a child of ours that ended and was not waited for counts among them."""
        seconds = max(0.01, time.monotonic() - self._start_s)
        return round(max(0.0, (_busy_s() - self._busy_s) - (_own_s() - self._own_s)) / seconds, 2)


def wait_until_quiet(cores_max: float = QUIET_CORES, patience_s: float = 20.0) -> float:
    """Wait until others use fewer than so many cores, or patience is over; returns what they use."""
    deadline_s = time.monotonic() + patience_s
    while True:
        others = Others()
        time.sleep(0.5)
        used = others.cores()
        if used < cores_max or time.monotonic() > deadline_s:
            return used


def _busy_s() -> float:
    """CPU seconds of all cores that were not idle: user, system, irq, softirq, steal, and nice if that takes ours."""
    user, nice, system, _idle, _iowait, *rest = map(int, _first_line("/proc/stat").split()[1:9])
    return (user + system + sum(rest) + (0 if nice_yields() else nice)) / _TICKS_PER_S


def nice_yields() -> bool:
    """Tell whether processes of low priority leave us the cores.

    With autogroups, which most distributions enable, a niceness counts only among the processes of one session, and
    sessions share the cores evenly; unless ours was raised (`echo -15 > /proc/self/autogroup` as root).
    """
    enabled = Path("/proc/sys/kernel/sched_autogroup_enabled")
    return not enabled.exists() or _first_line(enabled) == "0" or group_nice() < 0


def group_nice() -> int:
    """Niceness of our session as a whole; 0 without autogroups (no such file, or in some containers an empty one)."""
    group = Path("/proc/self/autogroup")
    shown = _first_line(group).split() if group.exists() else []
    return int(shown[-1]) if shown else 0


def share_group_nice(pid: int | None) -> None:
    """Give the session of a process of ours the niceness that our own has."""
    if pid is not None and group_nice() < 0:
        Path(f"/proc/{pid}/autogroup").write_text(str(group_nice()))


def _first_line(path: Path | str) -> str:
    return Path(path).read_text().split("\n", 1)[0]


def _own_s() -> float:
    """CPU seconds of this process, what it waited for, and all its living descendants with what they waited for."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(int(field) for field in fields[11:15])
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(used.get(pid, 0) for pid in own) / _TICKS_PER_S


def describe() -> dict[str, object]:
    """Name the machine."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES / 1e9),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
    }


def quantile(values: Sequence[float], share: float) -> float:
    """Smallest value that at least `share` of all values do not exceed; NaN of none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def middle(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Median of each figure over the quiet rounds (all of them if none was quiet); `rounds_used` says how many.

    Of several rounds also the extremes, as `name_min` and `name_max`.
    """
    used = [row for row in rows if row.get("others_cores", 0.0) < QUIET_CORES] or list(rows)
    merged: dict[str, float] = {}
    for name in used[0]:
        values = [row[name] for row in used]
        merged[name] = statistics.median(values)
        if len(used) > 1:
            merged[f"{name}_min"], merged[f"{name}_max"] = min(values), max(values)
    return {**merged, "rounds_used": len(used)}
