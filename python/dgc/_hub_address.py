"""Where a hub is, and a connection to it that is sure of that."""

import hashlib
import http.client
import ipaddress
import ssl
import urllib.parse
from typing import NamedTuple, NoReturn, Optional, Tuple

from . import _core

OPERATION = "join"
PORT = 7077
_CONNECT = 20.0  # seconds


class Place(NamedTuple):
    """Where a hub is, and how it proves that it is that one."""

    host: str
    port: int
    tls: bool
    pin: Optional[
        str
    ]  # "sha256:…", in lower case; None: the system's certificate authorities decide

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


def _invalid(subject: str, problem: str, hint: str) -> NoReturn:
    _core.fail("invalid_argument", OPERATION, subject, problem, hint)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def place_of(url: str, pin: Optional[str], insecure: Optional[str]) -> Place:
    example = "for example https://hub.example.org:7077"
    try:
        parts = urllib.parse.urlsplit(url)
        host, port = parts.hostname, parts.port
    except (TypeError, ValueError, AttributeError):
        _invalid("url", f"{url!r} is no address of a hub", example)
    more = parts.path.strip("/") or parts.query or parts.fragment or parts.username
    if parts.scheme not in ("http", "https") or not host or more:
        _invalid("url", f"{url!r} is no address of a hub", example)
    if insecure not in (None, "anywhere"):
        _invalid("insecure", f"is {insecure!r}", 'has to be None or "anywhere"')
    tls = parts.scheme == "https"
    if not tls and insecure is None and not _is_loopback(host):
        problem = "is not encrypted: everybody on the way can read the token and change the model"
        _invalid("url", f"{url} {problem}", 'use https, or say insecure="anywhere"')
    if pin is not None:
        pin = pin.lower() if isinstance(pin, str) else ""
        hexadecimal = pin[len("sha256:") :]
        if (
            not pin.startswith("sha256:")
            or len(hexadecimal) != 64
            or set(hexadecimal) - set("0123456789abcdef")
        ):
            _invalid("pin", "is not sha256: and 64 digits", "copy it from what `dgc serve` prints")
        if not tls:
            _invalid("pin", "is of no use without https", "use https://, or leave it out")
    return Place(host, port or PORT, tls, pin)


# ---- the pin -------------------------------------------------------------------------------------


def _element(der: bytes, at: int) -> Tuple[int, int, int]:
    """Of the element of ASN.1 that begins there: its tag, where its contents begin, and its end."""
    tag, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:
        count = length & 0x7F
        length = int.from_bytes(der[begin : begin + count], "big")
        begin += count
    if begin + length > len(der):
        raise ValueError("ends early")
    return tag, begin, begin + length


def pin_of(certificate: bytes) -> str:
    """Of a certificate in DER: the hash of its SubjectPublicKeyInfo."""
    _, at, _ = _element(certificate, 0)  # Certificate
    _, at, _ = _element(certificate, at)  # its TBSCertificate
    tag, _, end = _element(certificate, at)
    if tag == 0xA0:  # the version, which may be absent
        at = end
    for _ in range(5):  # serial number, signature, issuer, validity, subject
        at = _element(certificate, at)[2]
    return "sha256:" + hashlib.sha256(certificate[at : _element(certificate, at)[2]]).hexdigest()


def _context(pin: Optional[str]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if pin is None:
        context.load_default_certs()
    else:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # _Secure compares the pin in its place
    return context


class _Secure(http.client.HTTPSConnection):
    """Nothing is sent before the hub has shown the key of the pin."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.host, place.port, timeout=_CONNECT, context=_context(place.pin))
        self._place = place

    def connect(self) -> None:
        super().connect()
        pin = self._place.pin
        if pin is None:
            return
        certificate = self.sock.getpeercert(binary_form=True)
        try:
            found = pin_of(certificate or b"")
        except (ValueError, IndexError):
            found = "no key"
        if found != pin:
            self.close()
            _core.fail(
                "configuration_mismatch",
                OPERATION,
                str(self._place),
                f"shows {found}, and the pin is {pin}",
                "copy the pin from what `dgc serve` prints; if it is right, somebody else answers",
            )


# What TLS says where trying again does not help.
_NO_TLS = {
    "WRONG_VERSION_NUMBER": "speaks no TLS",
    "HTTP_REQUEST": "speaks no TLS",
    "UNSUPPORTED_PROTOCOL": "does not know TLS 1.3",
    "TLSV1_ALERT_PROTOCOL_VERSION": "does not know TLS 1.3",
}


def check_tls(place: Place, error: Exception) -> None:
    """Raises Error for what will be the same at the next attempt."""
    if isinstance(error, ssl.SSLCertVerificationError):
        _core.fail(
            "configuration_mismatch",
            OPERATION,
            str(place),
            f"has a certificate that is not trusted here: {error.verify_message}",
            "give the pin that `dgc serve` prints: pin='sha256:…'",
        )
    reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
    if reason in _NO_TLS:
        hint = "is it a hub, and was it started with --insecure?"
        _core.fail("configuration_mismatch", OPERATION, str(place), _NO_TLS[reason], hint)


def connection_to(place: Place) -> http.client.HTTPConnection:
    """Connects with the first request."""
    if place.tls:
        return _Secure(place)
    return http.client.HTTPConnection(place.host, place.port, timeout=_CONNECT)
