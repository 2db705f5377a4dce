import ipaddress

import pytest

from nsqadmin.access.roles import Caller, HeaderUsers, Right, Role, is_within

HERE = "10.0.0.9:1234"


def make_users(**more: object) -> HeaderUsers:
    given: dict[str, object] = {"admins": ["ada"], "roles": ["bob:operator"], "trusted": []}
    return HeaderUsers("X-Forwarded-User", **(given | more))  # type: ignore[arg-type]


def test_a_role_has_the_rights_up_to_its_own() -> None:
    assert Role.VIEWER.rights == ["view"]
    assert Role.OPERATOR.rights == ["view", "peek", "operate"]
    assert Caller("x", Role.READER).may(Right.PEEK)
    assert not Caller("x", Role.READER).may(Right.OPERATE)


@pytest.mark.parametrize(
    ("value", "role"),
    [
        (b"ada", Role.ADMIN),
        (b"bob", Role.OPERATOR),
        (b"eve", Role.VIEWER),
        (b"", Role.VIEWER),
        (b"ada, ada", Role.VIEWER),  # the header came twice
        (b"ADA", Role.VIEWER),
    ],
)
def test_who_the_header_names(value: bytes, role: Role) -> None:
    assert make_users().find({b"x-forwarded-user": value}, HERE).role is role


def test_nobody_is_a_viewer() -> None:
    assert make_users().find({}, HERE) == Caller("", Role.VIEWER)


def test_the_header_is_believed_from_trusted_networks_only() -> None:
    users = make_users(trusted=[ipaddress.ip_network("10.0.0.0/8")])
    headers = {b"x-forwarded-user": b"ada"}

    assert users.find(headers, "10.1.2.3:5").role is Role.ADMIN
    assert users.find(headers, "11.1.2.3:5") == Caller("", Role.VIEWER)
    assert users.find(headers, "@") == Caller("", Role.VIEWER)


def test_without_names_there_is_no_header_mode() -> None:
    assert make_users()
    assert not make_users(admins=[], roles=[])


def test_addresses_within_networks() -> None:
    networks = [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("fe80::/10")]

    assert is_within("127.0.0.1:80", networks)
    assert is_within("[::ffff:127.0.0.1]:80", networks)
    assert is_within("[fe80::1%eth0]:80", networks)
    assert not is_within("[::1]:80", networks)
    assert not is_within("nonsense", networks)
