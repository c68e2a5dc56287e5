"""TLS of a server: its settings, and certificates that are renewed while it runs."""

from __future__ import annotations

import logging
import os
import ssl
from contextlib import suppress
from typing import Any

from quire.core.errors import ConfigError
from quire.system.records import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files; `cert_reqs` as in `ssl`: with 2, clients need a certificate from `ca_certs`."""

    certfile: str
    keyfile: str | None = None
    ca_certs: str | None = None
    cert_reqs: int = ssl.CERT_NONE
    ciphers: str | None = None
    """In OpenSSL's format; None means Python's default."""

    @property
    def files(self) -> list[str]:
        return [file for file in (self.certfile, self.keyfile, self.ca_certs) if file]


def live_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for connections. New ones get new files, once these are complete.

    Each handshake looks at the files, so an idle server does not wake up.

    Raises:
        ConfigError: the files are unusable now.
    """
    found = latest = tls_context(tls)
    known = _stamps(tls)

    def look(connection: Any, name: str | None, context: ssl.SSLContext) -> None:
        nonlocal latest, known
        if (stamps := _stamps(tls)) != known:
            known = stamps
            try:
                latest = tls_context(tls)
                logger.info("new TLS files are in use")
            except ConfigError as error:
                logger.warning("connections keep the TLS files from before: %s", error)
        connection.context = latest

    found.sni_callback = look
    return found


def _stamps(tls: Tls) -> list[tuple[int, int, int]]:
    """Return what changes with the content of the files; nothing for a missing one."""
    found = []
    for file in tls.files:
        with suppress(OSError):  # it may go at any moment
            each = os.stat(file)
            found.append((each.st_ino, each.st_mtime_ns, each.st_size))
    return found


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for connections; raises `ConfigError` if the files are unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certfile, tls.keyfile)
        context.verify_mode = ssl.VerifyMode(tls.cert_reqs)
        if tls.ca_certs is not None:
            context.load_verify_locations(tls.ca_certs)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(tls.files)
        raise ConfigError(
            f"TLS cannot be set up with {files}: {error}.",
            fix="--ssl-certfile and --ssl-keyfile take a certificate and its key in PEM.",
            param="ssl_certfile",
        ) from None
    try:
        if tls.ciphers is not None:
            context.set_ciphers(tls.ciphers)
    except ssl.SSLError:
        raise ConfigError(
            f"--ssl-ciphers {tls.ciphers!r} selects no cipher of OpenSSL's.",
            fix="`openssl ciphers` lists their names.",
            param="ssl_ciphers",
        ) from None
    return context
