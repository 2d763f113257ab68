"""Which hosts the tools may connect to: the public internet, and what the environment's author names.

Always true: an address counts only in its canonical spelling; a host is checked before every connection, after DNS and
after a redirect; and the address that was checked is the one that is connected to. A host that the author writes into
a setting (`base_url`, `url`) is the author's choice: it is allowed, and its redirects are not followed.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator

from hermes_rl.tools.tool import ToolUseError

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str, int], Awaitable[Sequence[str]]]
"""Resolves a name: the addresses of a host and port; OSError when there are none."""


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, text.split()))


# What `allow_private: true` allows.
LOCAL = _networks("127.0.0.0/8 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 ::1/128 fc00::/7")
# Not allowed by `true`: the metadata services of AWS and GCP, although their addresses are local ones.
METADATA = _networks("fd00:ec2::/32 fd20:ce::/64")
# Own list, because `ipaddress.is_global` differs between Python versions. 168.63.129.16 is Azure's host agent.
NOT_PUBLIC = _networks(
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24 "
    "192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4 "
    "2001::/23 2001:db8::/32 2002::/16 3fff::/20"
)
# All other IPv6 addresses are special: loopback, local, multicast, IPv4-mapped, NAT64.
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_]([a-z0-9_-]{0,62}))*")
# The URL standard takes a host for an IPv4 address when its last label is a number.
NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


async def system_lookup(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """`names` and `networks` are allowed although they are not public; `only`, if given, limits the hosts."""

    names: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    allow_local: bool = False
    only: tuple[str, ...] | None = None
    lookup: Lookup = system_lookup

    @classmethod
    def from_settings(
        cls, allow_private: bool | Sequence[str], only: Sequence[str] | None = None, lookup: Lookup = system_lookup
    ) -> Self:
        """The policy of `allow_private` and a list of hosts. An address or `localhost` in that list is allowed too."""
        entries = [] if isinstance(allow_private, bool) else list(allow_private)
        entries += [host for host in only or () if host.lower() == "localhost" or _as_network(host) is not None]
        return cls(
            tuple(entry.lower() for entry in entries if _as_network(entry) is None),
            tuple(network for entry in entries if (network := _as_network(entry)) is not None),
            allow_private is True,
            None if only is None else tuple(only),
            lookup,
        )

    def check_host(self, host: str) -> str:
        """The host in canonical form, to connect to with `resolve`; ToolUseError when it is not allowed."""
        canonical = canonical_host(host)
        if self.only is not None and not _matches(canonical, self.only):
            raise ToolUseError(f"{canonical} may not be visited; allowed: {', '.join(self.only) or 'none'}")
        address = _as_address(canonical)
        if address is not None and not self.allows(address, canonical):
            raise _private(canonical)
        return canonical

    async def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host to connect to; ToolUseError when none is allowed, OSError when there are none."""
        canonical = self.check_host(host)
        if _as_address(canonical) is not None:
            return [canonical]
        found = await self.lookup(canonical, port)
        allowed = [text for text in found if self.allows(ipaddress.ip_address(text.partition("%")[0]), canonical)]
        if found and not allowed:
            raise _private(canonical)
        return allowed

    def allows(self, address: Address, host: str) -> bool:
        """Whether an address of a host may be connected to."""
        if _matches(host, self.names) or is_public(address):
            return True
        if not any(address in network for network in self.networks):
            metadata = any(address in network for network in METADATA)
            return self.allow_local and not metadata and any(address in network for network in LOCAL)
        # An allowed network of translated addresses does not allow the private ones behind it.
        inner = _embedded(address)
        return inner is None or self.allows(inner, host)


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_IPV6:
        return False
    return not any(address in network for network in NOT_PUBLIC)


def canonical_host(host: str) -> str:
    """A host name in lower case, or an address in its one canonical spelling; ToolUseError for any other text.

    Resolvers and browsers also read 127.1, 2130706433, 0177.0.0.1 and 0x7f.1 as addresses.
    """
    text = host.strip("[]") if host.startswith("[") else host
    try:
        text = text.encode("idna").decode().lower() if not text.isascii() else text.lower()
    except UnicodeError:
        raise ToolUseError(f"{host[:200]!r} is not a valid host name") from None
    text = text.removesuffix(".")
    if ":" in text or NUMBER.fullmatch(text.rpartition(".")[2]):
        address = _as_address(text)
        if address is None:
            raise ToolUseError(f"{host[:200]} is not a plain address; write an IPv4 address as four decimal numbers")
        return str(address)
    if not NAME.fullmatch(text):
        raise ToolUseError(f"{host[:200]!r} is not a valid host name")
    return text


def _check_entries(value: bool | list[str]) -> bool | list[str]:
    for entry in () if isinstance(value, bool) else value:
        name = entry.lower().removeprefix("*.")
        if _as_network(entry) is None and (not NAME.fullmatch(name) or NUMBER.fullmatch(name.rpartition(".")[2])):
            raise ValueError(f"{entry!r} is neither a host nor a network; give example.com, 127.0.0.1 or 10.1.0.0/16")
    return value


# The type of the setting `allow_private`, and its description.
AllowPrivate = Annotated[bool | list[str], AfterValidator(_check_entries)]
ALLOW_PRIVATE = (
    "Hosts and networks that may be reached although they are not public: [intranet.example, 10.1.0.0/16]. "
    "true allows loopback and private networks, for test sites."
)


def _matches(host: str, patterns: Iterable[str]) -> bool:
    return any(
        host.endswith(pattern[1:].lower()) if pattern.startswith("*.") else host == pattern.strip("[]").lower()
        for pattern in patterns
    )


def _as_address(text: str) -> Address | None:
    try:
        return None if "%" in text else ipaddress.ip_address(text)
    except ValueError:
        return None


def _as_network(text: str) -> Network | None:
    try:
        return ipaddress.ip_network(text.strip("[]"))
    except ValueError:
        return None


def _embedded(address: Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a translating IPv6 address leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _private(host: str) -> ToolUseError:
    return ToolUseError(f"{host} is in a private network; only pages of the public web can be read")
