"""Instances from DNS: the addresses of a name, or the targets of its SRV records.

A failing or empty answer says nothing: name servers are restarted, and a fleet that loses all its members at once is
more likely a broken zone. The TTL of the answer says when to ask again, within `ttl_s_min` and `ttl_s_max`.

SRV: targets of the lowest priority serve, others are in reserve; weights are taken relative to the smallest, if the
pool's policy knows weights. RFC 2782.
"""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

import dns.asyncresolver
import dns.exception
import dns.nameserver
import dns.resolver
from dns.rdatatype import RdataType

from evenload.discovery.source import Found, Listener
from evenload.settings import SourceSettings
from evenload.settings.discovery import server_of

ANSWER_S = 5.0
WEIGHT_MAX = 1000.0
PRIORITIES_MAX = 100
_NOTHING = (dns.resolver.NoAnswer, dns.resolver.NXDOMAIN)


class Target(NamedTuple):
    """What one record says.

    Attributes:
        host: an address, or a name without the dot at its end.
        port: of it.
        priority, weight: of an SRV record.
    """

    host: str
    port: int
    priority: int = 0
    weight: int = 1


class DnsSource:
    """Asks again and again.

    Args:
        source: with `dns` or `srv`.
        ttl_s: the least and the most time between two questions.
        weighed: whether the pool's policy knows weights.
    """

    def __init__(self, source: SourceSettings, ttl_s: tuple[float, float], *, weighed: bool) -> None:
        self._source = source
        self._ttl_s_min, self._ttl_s_max = ttl_s
        self._weighed = weighed

    async def run(self, listener: Listener) -> None:
        """Report each answer that holds something."""
        resolver = self._resolver()
        last: dict[RdataType, list[Target]] = {}
        while True:
            ttl_s, failures = await self._ask(resolver, last)
            targets = sorted({target for found in last.values() for target in found})
            # Of two kinds of addresses one may fail: the other's last answer stands beside the new one.
            if not targets or len(failures) == len(self._types):
                listener.failed("; ".join(failures) or "the answer holds nothing")
            else:
                listener.found(list(self._found(targets)))
            await asyncio.sleep(min(max(ttl_s, self._ttl_s_min), self._ttl_s_max))

    @property
    def _types(self) -> tuple[RdataType, ...]:
        return (RdataType.SRV,) if self._source.srv else (RdataType.A, RdataType.AAAA)

    async def _ask(
        self, resolver: dns.asyncresolver.Resolver, last: dict[RdataType, list[Target]]
    ) -> tuple[float, list[str]]:
        """Ask for each type and put what comes into `last`; return the TTL and why some gave nothing."""
        answers = await asyncio.gather(*(self._one(resolver, kind) for kind in self._types))
        failures: list[str] = []
        empty: list[RdataType] = []
        ttl_s = self._ttl_s_max
        for kind, answer in zip(self._types, answers, strict=True):
            if isinstance(answer, dns.exception.DNSException):
                failures.append(_reason(answer, kind))
                if isinstance(answer, _NOTHING):
                    empty.append(kind)
            else:
                ttl_s = min(ttl_s, answer[0])
                last[kind] = answer[1]
        if len(failures) == len(self._types):
            ttl_s = self._ttl_s_min
        if len(empty) < len(self._types):
            for kind in empty:  # the name is there and has none of these
                last.pop(kind, None)
        return ttl_s, failures

    async def _one(
        self, resolver: dns.asyncresolver.Resolver, kind: RdataType
    ) -> tuple[float, list[Target]] | dns.exception.DNSException:
        host, _, port = (self._source.srv or self._source.dns or "").partition(":")
        try:
            answer = await resolver.resolve(host, kind, lifetime=ANSWER_S, search=self._source.srv is None)
        except dns.exception.DNSException as error:
            return error
        assert answer.rrset is not None, "an answer without one raises NoAnswer"
        if kind == RdataType.SRV:
            records = [Target(str(r.target).rstrip("."), r.port, r.priority, r.weight) for r in answer]
            return answer.rrset.ttl, [target for target in records if target.host]
        return answer.rrset.ttl, [Target(record.address, int(port)) for record in answer]

    def _found(self, targets: list[Target]) -> Iterable[Found]:
        tiers = sorted({target.priority for target in targets})
        least = min((target.weight for target in targets if target.weight), default=1)
        for target in targets:
            host = f"[{target.host}]" if ":" in target.host else target.host
            data: dict[str, object] = {"url": f"{self._source.scheme}://{host}:{target.port}"}
            if self._source.srv:
                data["priority"] = min(tiers.index(target.priority), PRIORITIES_MAX)
                if self._weighed:
                    data["weight"] = min(max(target.weight, least) / least, WEIGHT_MAX)
            yield Found(self._source.instance(data))

    def _resolver(self) -> dns.asyncresolver.Resolver:
        own = self._source.nameservers
        resolver = dns.asyncresolver.Resolver(configure=not own)
        if own:
            resolver.nameservers = [dns.nameserver.Do53Nameserver(*server_of(text)) for text in own]
        resolver.cache = None  # its TTL is ours to keep
        return resolver


def _reason(error: dns.exception.DNSException, kind: RdataType) -> str:
    if isinstance(error, dns.exception.Timeout):
        return f"{kind.name}: timed out"  # its own words have measured times, and would be news each time
    return f"{kind.name}: {error}".rstrip(".")
