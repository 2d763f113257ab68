"""Which hosts the tools may connect to. Names are resolved by the test; nothing is sent anywhere."""

import ipaddress
from collections.abc import Sequence

import pytest
from pydantic import TypeAdapter, ValidationError

from hermes_rl.tools.network_policy import AllowPrivate, Lookup, NetworkPolicy, is_public
from hermes_rl.tools.tool import ToolUseError

PUBLIC = ["8.8.8.8", "1.1.1.1", "192.0.1.1", "172.32.0.1", "2606:4700::1111", "2a00:1450::1"]
NOT_PUBLIC = {
    "this host": ["0.0.0.0", "0.1.2.3", "::"],
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "fc00::1", "fd12::1", "fec0::1"],
    "link-local": ["169.254.1.1", "fe80::1"],
    "metadata": [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
    ],
    "carrier-grade NAT": ["100.64.0.1", "100.127.255.255"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1"],
    "reserved": [
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "240.0.0.1",
        "255.255.255.255",
        "2001:db8::1",
    ],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:8.8.8.8"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1"],
    "6to4": ["2002:7f00:1::", "2002:808:808::", "192.88.99.1"],
    "Teredo": ["2001:0:1::1"],
}


def names(**addresses: Sequence[str]) -> Lookup:
    async def lookup(host: str, port: int) -> Sequence[str]:
        return addresses[host.partition(".")[0]]

    return lookup


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))
    assert NetworkPolicy().check_host(address) == address


@pytest.mark.parametrize("kind", NOT_PUBLIC)
async def test_no_other_address_is_allowed_by_its_text_or_by_a_name(kind: str) -> None:
    for address in NOT_PUBLIC[kind]:
        with pytest.raises(ToolUseError, match="is in a private network"):
            NetworkPolicy().check_host(address)
        with pytest.raises(ToolUseError, match=r"inside\.example is in a private network"):
            await NetworkPolicy(lookup=names(inside=[address])).resolve("inside.example", 80)


@pytest.mark.parametrize(
    "host",
    [
        *("127.1", "2130706433", "0177.0.0.1", "0", "0x7f.1", "0x7f000001", "127.0.0.01", "127.0.1", "1.2.3.4.5"),
        *("017700000001", "127.0.0.1%lo", "fe80::1%eth0", "[::1%lo]", "\uff11\uff12\uff17.1", "0x", "256.1.1.1"),
    ],
)
def test_an_address_counts_only_in_its_canonical_spelling(host: str) -> None:
    everything = NetworkPolicy.from_settings(True)
    with pytest.raises(ToolUseError, match=r"not a plain address|not a valid host name"):
        everything.check_host(host)


@pytest.mark.parametrize("host", ["", ".", "a b", "a/b", "a@b", "-a", "a..b", "a\x00", "x" * 254, "a\\b", "%31"])
def test_what_is_no_host_name_is_refused(host: str) -> None:
    with pytest.raises(ToolUseError, match="not a valid host name"):
        NetworkPolicy().check_host(host)


def test_names_are_compared_in_lower_case_without_a_final_dot() -> None:
    assert NetworkPolicy().check_host("Example.COM.") == "example.com"
    assert NetworkPolicy().check_host("b\u00fccher.example") == "xn--bcher-kva.example"
    with pytest.raises(ToolUseError, match="private"):
        NetworkPolicy().check_host("127.0.0.1.")


async def test_of_several_addresses_only_the_allowed_ones_are_connected_to() -> None:
    policy = NetworkPolicy(lookup=names(mixed=["127.0.0.1", "8.8.8.8", "::1"]))
    assert await policy.resolve("mixed.example", 80) == ["8.8.8.8"]


async def test_the_answer_that_was_checked_is_the_one_that_is_used() -> None:
    """A name that changes from public to loopback between two lookups gives the address of the one lookup there is."""
    answers = iter([["8.8.8.8"], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    policy = NetworkPolicy(lookup=rebinding)
    assert await policy.resolve("rebinding.example", 80) == ["8.8.8.8"]
    with pytest.raises(ToolUseError, match="private"):
        await policy.resolve("rebinding.example", 80)


async def test_a_host_is_allowed_by_its_name_and_no_other_name_of_its_address() -> None:
    policy = NetworkPolicy.from_settings(["wiki.corp.example"], lookup=names(wiki=["10.0.0.7"], other=["10.0.0.7"]))
    assert await policy.resolve("wiki.corp.example", 80) == ["10.0.0.7"]
    for host in ("other.corp.example", "10.0.0.7"):
        with pytest.raises(ToolUseError, match="private"):
            await policy.resolve(host, 80)


async def test_a_pattern_allows_the_names_below_it() -> None:
    policy = NetworkPolicy.from_settings(["*.corp.example"], lookup=names(wiki=["10.0.0.7"], wikicorp=["10.0.0.7"]))
    assert await policy.resolve("wiki.corp.example", 80) == ["10.0.0.7"]
    with pytest.raises(ToolUseError, match="private"):
        await policy.resolve("wikicorp.example", 80)


def test_a_network_is_allowed_by_its_addresses() -> None:
    policy = NetworkPolicy.from_settings(["10.1.0.0/16", "127.0.0.1"])
    assert policy.check_host("10.1.2.3") == "10.1.2.3"
    assert policy.check_host("127.0.0.1") == "127.0.0.1"
    for host in ("10.2.0.1", "127.0.0.2"):
        with pytest.raises(ToolUseError, match="private"):
            policy.check_host(host)


def test_a_network_of_translated_addresses_does_not_allow_the_private_ones_behind_it() -> None:
    policy = NetworkPolicy.from_settings(["64:ff9b::/96", "::ffff:0:0/96"])
    assert policy.check_host("64:ff9b::808:808")
    for host in ("64:ff9b::7f00:1", "::ffff:10.0.0.1"):
        with pytest.raises(ToolUseError, match="private"):
            policy.check_host(host)


def test_true_allows_loopback_and_private_networks_but_no_metadata_service() -> None:
    policy = NetworkPolicy.from_settings(True)
    for kind in ("loopback", "private"):
        for address in NOT_PUBLIC[kind]:
            assert address == "fec0::1" or policy.check_host(address) == address
    for kind in ("metadata", "link-local", "multicast", "carrier-grade NAT", "NAT64", "6to4", "IPv4-mapped"):
        for address in NOT_PUBLIC[kind]:
            with pytest.raises(ToolUseError, match="private"):
                policy.check_host(address)


def test_a_list_of_hosts_refuses_all_others_and_allows_the_addresses_in_it() -> None:
    policy = NetworkPolicy.from_settings(False, only=["127.0.0.1", "[::1]", "*.example.com"])
    for host in ("127.0.0.1", "::1", "www.example.com"):
        assert policy.check_host(host) == host
    for host in ("127.0.0.2", "example.org", "notexample.com"):
        with pytest.raises(ToolUseError, match="may not be visited"):
            policy.check_host(host)


async def test_a_name_in_the_list_of_hosts_still_needs_a_public_address() -> None:
    policy = NetworkPolicy.from_settings(False, only=["example.com"], lookup=names(example=["127.0.0.1"]))
    with pytest.raises(ToolUseError, match="private"):
        await policy.resolve("example.com", 80)


@pytest.mark.parametrize("entry", ["http://x", "10.0.0.0/33", "10.0.0.1/8", "a b", "127.1", "", "*"])
def test_a_setting_that_is_neither_a_host_nor_a_network_is_refused(entry: str) -> None:
    with pytest.raises(ValidationError, match="neither a host nor a network"):
        TypeAdapter(AllowPrivate).validate_python([entry])
