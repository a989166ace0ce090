"""Addresses of servers as people write them: `host:port`."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from lance_spark.errors import OptionError
from lance_spark.value import dataclass

PORT_MAX = 65535
# None of these can be part of a host name; most come from a URL given as an address.
_FORBIDDEN = frozenset("/\\@?#[],:%'\"")


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port; port 0 is any free port and can only be listened on."""

    host: str
    port: int

    def __post_init__(self) -> None:
        if not self.host:
            raise OptionError("an address without a host: give one as host:port")
        if not 0 <= self.port <= PORT_MAX:
            raise OptionError(
                f"port {self.port} of {self.host}: a port is between 0 and {PORT_MAX}"
            )

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, *, default_port: int | None = None) -> Address:
    """Read `host:port`, an IPv6 host in brackets.

    Args:
        text: the address.
        default_port: the port of an address that names none; without it each has to.

    Raises:
        OptionError: the text is no address.
    """
    stripped = text.strip()
    if stripped.startswith("["):
        host, bracket, rest = stripped[1:].partition("]")
        if not bracket or rest[:1] not in ("", ":"):
            raise _fault(text, "an IPv6 host is written [::1]:1992")
        _check_ipv6(text, host)
        return Address(host, _parse_port(text, rest, default_port))
    if "://" in stripped:
        raise _fault(text, "leave out what is before the host, and give host:port")
    if stripped.count(":") > 1:
        raise _fault(text, "an IPv6 host goes in brackets, as in [::1]:1992")
    host, colon, port = stripped.partition(":")
    _check_host(text, host)
    return Address(host, _parse_port(text, colon + port, default_port))


def parse_addresses(
    servers: str | Sequence[str], *, default_port: int | None = None
) -> tuple[Address, ...]:
    """Read one or more addresses, separated by commas or already apart.

    Raises:
        OptionError: there is none, or one of them is no address.
    """
    texts = servers.split(",") if isinstance(servers, str) else list(servers)
    if not any(text.strip() for text in texts):
        raise OptionError("no server address: give host:port, several with commas")
    return tuple(parse_address(text, default_port=default_port) for text in texts)


def _parse_port(text: str, suffix: str, default: int | None) -> int:
    """Read what follows the host: nothing, or a colon and a number."""
    if not suffix:
        if default is None:
            raise _fault(text, "the port is missing, give host:port")
        return default
    digits = suffix[1:]
    is_number = digits.isascii() and digits.isdecimal() and len(digits) <= 5
    if not is_number or int(digits) > PORT_MAX:
        raise _fault(text, f"the port has to be a number between 0 and {PORT_MAX}")
    return int(digits)


def _check_host(text: str, host: str) -> None:
    if not host:
        raise _fault(text, "the host is missing, give host:port")
    for character in host:
        if character in _FORBIDDEN or not character.isprintable() or character == " ":
            raise _fault(text, f"a host name has no {character!r}, give host:port")


def _check_ipv6(text: str, host: str) -> None:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        raise _fault(text, "only an IPv6 address goes in brackets") from None


def _fault(text: str, advice: str) -> OptionError:
    return OptionError(f"address {text!r} can't be understood: {advice}")
