"""What EndpointSlices say of a service's endpoints. Pure.

Of an endpoint's conditions, `terminating` takes it out, so that it drains; `ready: false` keeps it, but no requests go
there; null means true for `ready`, as the API asks. Endpoints of pods have the pod's name, which is no other pod's
(except in a StatefulSet, where the pod's uid tells them apart), others their address. A service with two families of
addresses has each pod twice: IPv4 is taken.
https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

_FAMILIES = ("IPv6", "FQDN", "IPv4")  # the last one wins


class Endpoint(NamedTuple):
    """One endpoint of a service.

    Attributes:
        name: of the pod, else its address.
        host: address, IPv6 in brackets.
        port: number of the wanted port.
        ready: whether it takes requests.
        uid: of the pod, else empty.
    """

    name: str
    host: str
    port: int
    ready: bool
    uid: str


def endpoints(slices: Iterable[Mapping[str, Any]], port: str) -> list[Endpoint]:
    """Return the endpoints that do not terminate, sorted by name.

    Args:
        slices: EndpointSlice objects as the API gives them.
        port: name or number of the port that is wanted; endpoints without it are left out.
    """
    best: dict[str, tuple[tuple[int, bool], Endpoint]] = {}
    for one in slices:
        rank = _FAMILIES.index(one["addressType"]) if one.get("addressType") in _FAMILIES else 0
        for endpoint in _of(one, port):
            # While slices are rebalanced an endpoint is in two of them for a moment.
            order = (rank, endpoint.ready)
            if endpoint.name not in best or order > best[endpoint.name][0]:
                best[endpoint.name] = order, endpoint
    return [best[name][1] for name in sorted(best)]


def _of(one: Mapping[str, Any], port: str) -> Iterator[Endpoint]:
    number = _number(one.get("ports") or (), port)
    if number is None:
        return
    for endpoint in one.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        addresses = endpoint.get("addresses") or ()
        if conditions.get("terminating") or not addresses:
            continue
        target = endpoint.get("targetRef") or {}
        pod = target.get("kind") == "Pod"
        address = str(addresses[0])  # further ones are not to be used, says the API
        host = f"[{address}]" if ":" in address else address
        yield Endpoint(
            name=str(target["name"]) if pod and target.get("name") else f"{host}:{number}",
            host=host,
            port=number,
            ready=conditions.get("ready") is not False,
            uid=str(target.get("uid") or "") if pod else "",
        )


def _number(ports: Iterable[Mapping[str, Any]], wanted: str) -> int | None:
    for port in ports:
        number = port.get("port")
        if number is not None and wanted in (port.get("name"), str(number)):
            return int(number)
    return None
