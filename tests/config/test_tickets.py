"""Which ticket systems the settings name; a mistake stops the start and shows no secret."""

import base64
import ipaddress

import pytest
from django.core.exceptions import ImproperlyConfigured

from config import tickets

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()


def test_a_system_has_an_address_and_a_secret():
    systems = tickets.systems(["dcim=https://tickets.example.org/hook?a=b", "phone="])

    keys = tickets.keys([f"dcim={SECRET}", f"phone={SECRET}"], names=systems)

    assert systems == {"dcim": "https://tickets.example.org/hook?a=b", "phone": ""}
    assert keys == {"dcim": b"k" * 32, "phone": b"k" * 32}


@pytest.mark.parametrize("members", [["dcim"], ["=https://a"], ["DC IM=https://a"], ["../x=a"]])
def test_a_system_without_a_plain_name_stops_the_start(members: list[str]):
    with pytest.raises(ImproperlyConfigured, match="TICKET_SYSTEMS"):
        tickets.systems(members)


@pytest.mark.parametrize(
    "members", [[], [f"other={SECRET}"], [f"dcim={SECRET}", f"other={SECRET}"], ["dcim=hunter2"]]
)
def test_secrets_that_do_not_belong_to_systems_stop_the_start(members: list[str]):
    with pytest.raises(ImproperlyConfigured) as error:
        tickets.keys(members, names={"dcim": "https://a"})

    assert "TICKET_SECRETS" in str(error.value)
    assert SECRET not in str(error.value)
    assert "hunter2" not in str(error.value)


def test_a_secret_without_its_name_is_not_shown():
    with pytest.raises(ImproperlyConfigured) as error:
        tickets.keys([SECRET.rstrip("=")], names={"dcim": "https://a"})

    assert SECRET[6:16] not in str(error.value)


def test_ports_and_networks_are_read():
    assert tickets.ports(["443", "8443"]) == {443, 8443}
    assert tickets.networks(["10.0.0.0/8"]) == [ipaddress.ip_network("10.0.0.0/8")]


@pytest.mark.parametrize("ports", [["0"], ["65536"], ["https"], ["-1"]])
def test_a_port_that_is_none_stops_the_start(ports: list[str]):
    with pytest.raises(ImproperlyConfigured, match="WEBHOOK_PORTS"):
        tickets.ports(ports)


@pytest.mark.parametrize("networks", [["10.0.0.1/8"], ["everywhere"]])
def test_a_network_that_is_none_stops_the_start(networks: list[str]):
    with pytest.raises(ImproperlyConfigured, match="WEBHOOK_NETWORKS"):
        tickets.networks(networks)
