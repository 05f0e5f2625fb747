"""What a request looks like at one instance: path, query, headers, credential and the model's name.

An engine that speaks the API as it came needs none of this. A provider has a path of its own, a key, and its own name
for a model; Azure's older paths have the model in the path. The body is changed in the model's name only
(`body_model.py`).
"""

from collections.abc import Mapping
from urllib.parse import quote, urlencode

import msgspec

from evenload.settings.instance_keys import Key

from .body_model import Found, find_model, replaced
from .endpoints import FORMS
from .form_fields import field_spans
from .headers import Headers, content_type_of
from .sigv4 import Signer

ANY_MODEL = "*"


class Shape:
    """Makes a provider's request of a client's.

    Args:
        key: sent as `key_header`, `bearer` or plainly; None for none.
        headers: more of them, with lower-case names; they win over the client's.
        query: instead of the client's, if there is any.
        names: the instance's names of models by the client's; `*` for all others.
        deployments: the model is part of the path, as at Azure.
        signer: signs instead of sending a key.
    """

    __slots__ = ("_bearer", "_deployments", "_encoded", "_headers", "_key", "_key_header", "_query", "names", "signer")

    def __init__(
        self,
        *,
        key: Key | None = None,
        key_header: str = "authorization",
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        names: Mapping[str, str] | None = None,
        deployments: bool = False,
        signer: Signer | None = None,
    ) -> None:
        self._key = key
        self._key_header = key_header.encode()
        self._bearer = key_header == "authorization"
        self._headers = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self._query = urlencode(query, quote_via=quote).encode() if query else b""
        self._deployments = deployments
        self.names = dict(names or {})
        self._encoded = {name: msgspec.json.encode(name) for name in self.names.values()}
        self.signer = signer

    def __repr__(self) -> str:
        return f"Shape(names={sorted(self.names)}, signer={self.signer!r})"

    def name_of(self, model: str) -> str:
        """Return the instance's name of a model."""
        return self.names.get(model) or self.names.get(ANY_MODEL) or model

    @property
    def has_credential(self) -> bool:
        """Whether requests carry one of Evenload's."""
        return self._key is not None or self.signer is not None

    def chooses(self, model: str) -> bool:
        """Tell whether the instance's name of a model is of the settings, and not the client's own."""
        return model in self.names or ANY_MODEL in self.names

    def apply(self, path: bytes, headers: Headers, body: bytes) -> tuple[bytes, Headers, bytes]:
        """Return path, headers and body as the instance wants them; the base URL's path and a signature come later.

        Args:
            path: as clients ask for it, `/v1/...`, with their query.
            headers: to be sent.
            body: empty for a GET; the proxy has read it by the same headers, so it can be read.
        """
        found = None
        if body and (self.names or self._deployments):
            form = path.partition(b"?")[0] in FORMS
            found = _in_form(headers, body) if form else find_model(body)
            if self.names:
                body = self._renamed(body, found, quoted=not form)
        return self._target(path, found), self._completed(headers), body

    def _renamed(self, body: bytes, found: Found, *, quoted: bool) -> bytes:
        name = self.name_of(found.name)
        if name == found.name:
            return body
        if not quoted:
            return replaced(body, found, name.encode())
        return replaced(body, found, self._encoded[name])

    def _target(self, path: bytes, found: Found | None) -> bytes:
        if self._deployments:
            plain = path.partition(b"?")[0]
            rest = plain.removeprefix(b"/v1")
            deployment = b"" if found is None else b"/deployments/" + quote(self.name_of(found.name), safe="").encode()
            path = path.replace(plain, b"/openai" + deployment + rest, 1)
        return path.partition(b"?")[0] + b"?" + self._query if self._query else path

    def _completed(self, headers: Headers) -> Headers:
        added = list(self._headers)
        if self._key is not None:
            key = self._key.current().encode()
            added.append((self._key_header, b"Bearer " + key if self._bearer else key))
        if not added:
            return headers
        names = {name for name, _ in added}
        return [header for header in headers if header[0] not in names] + added


def _in_form(headers: Headers, body: bytes) -> Found:
    spans = [span for _, span in field_spans(content_type_of(headers), body, ("model",))]
    start, end = spans[-1]
    return Found(body[start:end].decode(), spans)
