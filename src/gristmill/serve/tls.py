"""TLS: the server's certificate, and whose clients are let in."""

from __future__ import annotations

import ssl

from gristmill.errors import UsageError
from gristmill.options import Tls

_CLIENTS = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

_WRONG_PASSWORD = (None, "BAD_DECRYPT", "BAD_PASSWORD_READ")
"""OpenSSL 3 often has no word for it."""


def context(tls: Tls) -> ssl.SSLContext:
    """A server's context, TLS 1.2 and above. Raises UsageError, in one sentence."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    if tls.ciphers is not None:
        try:
            made.set_ciphers(tls.ciphers)
        except ssl.SSLError:
            raise UsageError(f"--ssl-ciphers names no cipher: {tls.ciphers!r}.") from None
    if tls.ca is not None:
        try:
            made.load_verify_locations(tls.ca)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"--ssl-ca-certs {tls.ca}: {_why(error)}.") from None
    made.verify_mode = _CLIENTS[tls.client_certificates]
    load(made, tls)
    return made


def load(context: ssl.SSLContext, tls: Tls) -> None:
    """Reads certificate and key (again): connections from now on have them.

    Raises UsageError, and leaves the context with what it had.
    """
    _try(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), tls)  # a bad pair would half replace a good one
    _try(context, tls)


def _try(context: ssl.SSLContext, tls: Tls) -> None:
    def password() -> str:
        if tls.password is None:
            # Without this OpenSSL would ask on the terminal, and wait.
            raise UsageError(f"The key {tls.key} is encrypted; give --ssl-keyfile-password.")
        return tls.password

    try:
        context.load_cert_chain(tls.certificate, tls.key, password)
    except ssl.SSLError as error:
        where = f"The certificate {tls.certificate} and the key {tls.key}"
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"{where} do not belong together.") from None
        if tls.password is not None and error.reason in _WRONG_PASSWORD:
            raise UsageError(f"--ssl-keyfile-password does not open {tls.key}.") from None
        raise UsageError(f"{where} cannot be used: {_why(error)}.") from None
    except OSError as error:
        raise UsageError(
            f"{tls.certificate} or {tls.key} cannot be read: {error.strerror}."
        ) from None


def _why(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return str(reason or "not a PEM file").lower().replace("_", " ")
