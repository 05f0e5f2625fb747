"""A certificate authority for tests, made with the openssl command."""

import shutil
import ssl
import subprocess
from pathlib import Path

from tests.absence import lacking

EC = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]


class Authority:
    """Makes certificates that nobody but its own file vouches for.

    Attributes:
        file: its certificate, PEM.
    """

    def __init__(self, folder: Path, name: str = "authority") -> None:
        found = shutil.which("openssl")
        if found is None:
            lacking("the openssl command to make a certificate")
        self._openssl = found
        self._folder = folder
        self._key, self.file = folder / f"{name}.key", folder / f"{name}.pem"
        usage = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"]
        self._run(
            "req", "-x509", *EC, "-days", "2", "-subj", f"/CN={name}", *usage, "-keyout", self._key, "-out", self.file
        )

    def server_context(self, host: str) -> ssl.SSLContext:
        """Return a server's context with a certificate for a name or an address."""
        certificate, key = self.certify(host)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        return context

    def certify(self, host: str) -> tuple[Path, Path]:
        """Make a certificate for a name or an address; returns it and its key, PKCS 8, both PEM."""
        key, request, certificate, extensions = (self._folder / f"{host}.{end}" for end in ("key", "csr", "pem", "ext"))
        kind = "IP" if host.replace(".", "").isdigit() else "DNS"
        extensions.write_text(f"subjectAltName={kind}:{host}\nbasicConstraints=CA:FALSE\n")
        self._run("req", "-new", *EC, "-subj", f"/CN={host}", "-keyout", key, "-out", request)
        by = ["-CA", self.file, "-CAkey", self._key, "-CAcreateserial"]
        self._run("x509", "-req", "-in", request, "-days", "2", *by, "-extfile", extensions, "-out", certificate)
        return certificate, key

    def lock(self, key: Path, password: str) -> Path:
        """Return a copy of a key that only the password opens."""
        locked = key.with_suffix(".locked")
        self._run("pkcs8", "-topk8", "-in", key, "-out", locked, "-passout", f"pass:{password}")
        return locked

    def _run(self, *arguments: object) -> None:
        subprocess.run([self._openssl, *map(str, arguments)], check=True, capture_output=True)
