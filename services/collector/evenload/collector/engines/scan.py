"""Finding the handful of lines that matter on a page in Prometheus' text format, without parsing the page.

A real vLLM's page has 58 KB and 600 lines, of which a dozen matter. A search for a name costs microseconds; a parser
looks at every byte in Python. The format has all lines of a metric in one group, so the search ends with the group,
unless the first metric that was found comes in several: then it is a page joined of several, and all is searched.

No value is trusted. One that is not a number, not finite, negative or too large is dropped and counted, and its metric
is unknown: the sum of the rest would make the instance look less loaded than it is. A series that is said twice is
dropped and counted too; the metric is unknown if the two disagree.
"""

from collections.abc import Iterable

COUNT_MAX = 2**53
STARTED_S_MAX = 1e12
SERIES_MAX = 4096  # per metric; a page with more is not an engine's

Labels = bytes
Series = tuple[Labels, float | None]


class Scan:
    """One page being read.

    Attributes:
        dropped: values that could not be, so far.
    """

    def __init__(self, page: bytes) -> None:
        self._text = b"\n" + page
        self._joined: bool | None = None
        self.dropped = 0

    def count(self, *names: bytes, where: bytes = b"", per: bytes = b"") -> int | None:
        """Return the sum over all series, of the first of the names that is there.

        Args:
            names: the newest name first.
            where: what labels must contain, for instance `reason="deferred"`.
            per: label of which each value has a share of its own; series that differ in other labels only say the same
                and the largest counts (SGLang's ranks). Empty: every series has its own share.
        """
        values = self._first(names, where, COUNT_MAX)
        if values is None:
            return None
        total = _total(values, per)
        return int(total) if total <= COUNT_MAX else None

    def share(self, *names: bytes, where: bytes = b"") -> float | None:
        """Return the largest of all series, each 0..1."""
        return _largest(self._first(names, where, 1.0))

    def moment(self, *names: bytes) -> float | None:
        """Return the latest of all series, in seconds since the epoch."""
        return _largest(self._first(names, b"", STARTED_S_MAX))

    def _first(self, names: Iterable[bytes], where: bytes, top: float) -> dict[Labels, float] | None:
        for name in names:
            series, groups = _series(self._text, name, whole=self._joined is not False)
            if series and self._joined is None:
                self._joined = groups > 1
            if found := [one for one in series if where in one[0]]:
                return self._checked(found, top)
        return None

    def _checked(self, found: list[Series], top: float) -> dict[Labels, float] | None:
        values: dict[Labels, float] = {}
        wrong = len(found) >= SERIES_MAX
        for labels, value in found:
            if value is None or not 0 <= value <= top:  # a NaN compares as false
                wrong = True
                self.dropped += 1
            elif labels in values:
                wrong = wrong or values[labels] != value
                self.dropped += 1
            else:
                values[labels] = value
        return None if wrong else values


def _total(values: dict[Labels, float], per: bytes) -> float:
    if not per:
        return sum(values.values())
    groups: dict[bytes, float] = {}
    for labels, value in values.items():
        key = label(labels, per)
        groups[key] = max(groups.get(key, 0.0), value)
    return sum(groups.values())


def _largest(values: dict[Labels, float] | None) -> float | None:
    return None if values is None else max(values.values())


def label(labels: Labels, name: bytes) -> bytes:
    """Value of a label, as escaped on the page; empty when it is not there."""
    for opening in (b"{", b",", b", "):
        _, found, rest = labels.partition(opening + name + b'="')
        if found:
            return rest.partition(b'"')[0]
    return b""


def has(page: bytes, prefix: bytes) -> bool:
    """Tell whether a line begins with `prefix`."""
    return page.startswith(prefix) or b"\n" + prefix in page


def _series(text: bytes, name: bytes, *, whole: bool) -> tuple[list[Series], int]:
    """Series of a metric with their labels, the value None for one that is not a number, and their groups.

    `whole`: look for more than one group of lines.
    """
    found: list[Series] = []
    groups = 0
    needle = b"\n" + name
    at = text.find(needle)
    while at >= 0 and len(found) < SERIES_MAX:
        before = len(found)
        while len(found) < SERIES_MAX:
            begin = at + len(needle)
            at = text.find(b"\n", begin)
            line = text[begin:] if at < 0 else text[begin:at]
            if line[:1] in (b"{", b" ", b"\t"):  # else it is a longer name
                found.append(_parts(line))
            if at < 0 or not text.startswith(needle, at):
                break
        groups += len(found) > before
        if at < 0 or (found and not whole):
            break
        at = text.find(needle, at)
    return found, groups


def _parts(line: bytes) -> Series:
    """Labels and value of a line after its name: `{labels} value [timestamp]`, labels being optional."""
    labels = b""
    if line.startswith(b"{"):
        end = _labels_end(line)
        labels, line = line[:end], line[end:]
    fields = line.split(None, 1)
    if not fields or b"_" in fields[0]:  # Python would read 1_0 as a number
        return labels, None
    try:
        return labels, float(fields[0])
    except ValueError:
        return labels, None


def _labels_end(line: bytes) -> int:
    """Index after the closing brace; label values may hold braces, blanks and escaped quotes."""
    if line.count(b"}") <= 1 and b"\\" not in line:  # the usual line: no need to look at every byte
        return line.find(b"}") + 1 or len(line)
    quoted = escaped = False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif quoted:
            escaped = char == 0x5C
            quoted = char != 0x22
        elif char == 0x22:
            quoted = True
        elif char == 0x7D:
            return index + 1
    return len(line)
