"""Which engine it is: as set, or by what its pages answer.

An endpoint's page is looked for at `/metrics` and `/prometheus/metrics`, one of them per poll, until lines of a known
engine are seen. That engine's adapter is kept as long as its lines are there, so that a page which changes its mind
(another engine behind the same address) is looked at afresh.
"""

from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from evenload.collector.engines import llamacpp, sglang, tgi, triton, trtllm, vllm
from evenload.collector.engines.page import Page
from evenload.collector.engines.scan import has

AUTO = "auto"
UNKNOWN = "unknown"


class Adapter(NamedTuple):
    """How one kind of engine is read.

    Attributes:
        kind: its name in the settings.
        mark: what its lines begin with.
        paths: where its page is, the best first.
        parse: pure; from a page to gauges.
    """

    kind: str
    mark: bytes
    paths: tuple[str, ...]
    parse: Callable[[bytes], Page]


_PLAIN = ("/metrics",)
ADAPTERS = (
    Adapter("vllm", vllm.MARK, _PLAIN, vllm.parse),
    Adapter("sglang", sglang.MARK, _PLAIN, sglang.parse),
    Adapter("trtllm", trtllm.MARK, ("/prometheus/metrics", "/metrics"), trtllm.parse),
    Adapter("triton", triton.MARK, _PLAIN, triton.parse),
    Adapter("tgi", tgi.MARK, _PLAIN, tgi.parse),
    Adapter("llamacpp", llamacpp.MARK, _PLAIN, llamacpp.parse),
)
_BY_KIND = {adapter.kind: adapter for adapter in ADAPTERS}
_ANYWHERE = ("/metrics", "/prometheus/metrics")
PATHS_MAX = len(_ANYWHERE)


def recognise(page: bytes) -> Adapter | None:
    """Return the adapter of the engine that wrote a page, if it is a known one."""
    if page.lstrip()[:1] == b"[":
        return _BY_KIND["trtllm"]
    return next((adapter for adapter in ADAPTERS if has(page, adapter.mark)), None)


class Endpoint:
    """Where the page of one instance is and how it is read, as far as known.

    Attributes:
        kind: of the engine; `unknown` until its page was recognised.
        path: what to GET next.
    """

    def __init__(self, kind: str, path: str | None = None) -> None:
        """Take the kind as set, `auto` to find out, and the page's path if it is set."""
        self._adapter = _BY_KIND.get(kind)
        self._auto = self._adapter is None
        self._set_path = path
        self._turn = 0

    @classmethod
    def of(cls, kind: str, url: str, metrics_url: str | None) -> tuple["Endpoint", str]:
        """Return the endpoint of an instance and the base address of its paths."""
        if metrics_url is None:
            return cls(kind), url
        path = urlsplit(metrics_url).path
        return cls(kind, path), metrics_url.removesuffix(path)

    def __repr__(self) -> str:
        return f"<Endpoint {self.kind} {self.path}>"

    @property
    def kind(self) -> str:
        """Name of the kind."""
        return self._adapter.kind if self._adapter else UNKNOWN

    @property
    def path(self) -> str:
        """What to GET next."""
        if self._set_path is not None:
            return self._set_path
        paths = self._adapter.paths if self._adapter else _ANYWHERE
        return paths[self._turn % len(paths)]

    def read(self, status: int, body: bytes) -> Page | None:
        """Take the answer to a GET of `path`; None when it is no page, and then `path` may be another one."""
        if status != 200:
            self._turn += 1
            return None
        if self._auto and not self._is_mine(body):
            return self._recognised(body)
        adapter = self._adapter
        assert adapter is not None
        page = adapter.parse(body)
        if not page.known and not page.quiet:
            self._turn += 1  # perhaps its other page says more
        return page

    def _is_mine(self, body: bytes) -> bool:
        return self._adapter is not None and (has(body, self._adapter.mark) or recognise(body) is self._adapter)

    def _recognised(self, body: bytes) -> Page | None:
        asked, before = self.path, self._adapter
        self._adapter = recognise(body)
        if self._adapter is None:
            self._turn += 1
            return Page() if before else None  # its lines vanished: all is unknown, and whoever watches must hear it
        paths = self._adapter.paths
        settled = self._set_path is not None or asked == paths[0]
        self._turn = paths.index(asked) if settled and asked in paths else 0
        return self._adapter.parse(body)
