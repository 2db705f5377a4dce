import pytest

from nsqd.http.origin import (
    BrowserGuard,
    CrossSitePolicy,
    HostPolicy,
    find_host_name,
    is_loopback_name,
)
from nsqd.http.routes import OK, HttpError, Request, Route, Target


def make_request(method: str = "POST", **headers: str) -> Request:
    raw = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    route = Route.fixed(OK)
    return Request(method.encode(), Target(b"/"), route, raw, "127.0.0.1:1", is_tls=False)


class TestCrossSite:
    @pytest.mark.parametrize(
        "headers",
        [
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"sec_fetch_site": "cross-site", "origin": "https://evil.example"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"origin": "http://here.example:80"},
            {"origin": "here.example"},
        ],
    )
    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
    def test_a_change_by_another_site_is_refused(
        self, method: str, headers: dict[str, str]
    ) -> None:
        request = make_request(method, host="here.example", **headers)

        assert CrossSitePolicy().is_refused(request)

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"sec_fetch_site": "same-origin"},
            {"sec_fetch_site": "none"},
            {"origin": "https://HERE.example"},
            {"sec_fetch_site": "same-origin", "origin": "null"},
        ],
    )
    def test_scripts_and_pages_of_ours_are_not(self, headers: dict[str, str]) -> None:
        assert not CrossSitePolicy().is_refused(make_request(host="here.example", **headers))

    def test_reading_is_not_refused(self) -> None:
        request = make_request("GET", host="here.example", sec_fetch_site="cross-site")

        assert not CrossSitePolicy().is_refused(request)

    def test_a_site_that_is_named_may_change(self) -> None:
        policy = CrossSitePolicy(["https://friend.example"])
        friend = {"sec_fetch_site": "cross-site", "origin": "https://friend.example"}

        assert not policy.is_refused(make_request(host="here", **friend))
        assert policy.is_refused(make_request(host="here", origin="https://friend.example.evil"))


class TestHost:
    @pytest.mark.parametrize(
        ("host", "answer"),
        [
            ("evil.example", "refused"),
            ("127.0.0.1.evil.example:4171", "refused"),
            ("localhost.evil.example", "refused"),
            ("10.0.0.1", "refused"),
            ("localhost:4171", "served"),
            ("LOCALHOST", "served"),
            ("console.localhost:1", "served"),
            ("127.0.0.1:4171", "served"),
            ("127.9.9.9", "served"),
            ("[::1]:4171", "served"),
        ],
    )
    def test_on_loopback_only_names_of_loopback_are_good(self, host: str, answer: str) -> None:
        policy = HostPolicy((), is_loopback=True)

        assert policy.is_refused(make_request("GET", host=host)) is (answer == "refused")

    def test_names_that_are_allowed(self) -> None:
        policy = HostPolicy(["admin.example"], is_loopback=False)

        assert not policy.is_refused(make_request(host="Admin.Example.:443"))
        assert policy.is_refused(make_request(host="127.0.0.1"))
        assert policy.is_refused(make_request(host="evil.example"))

    def test_anywhere_else_every_name_is_good(self) -> None:
        assert not HostPolicy((), is_loopback=False).is_refused(make_request(host="any.example"))
        assert not HostPolicy(["*"], is_loopback=True).is_refused(make_request(host="any.example"))
        assert not HostPolicy((), is_loopback=True).is_refused(make_request())


def test_names_in_host_headers() -> None:
    assert find_host_name("a.example:1") == "a.example"
    assert find_host_name("[fe80::1%eth0]:80") == "fe80::1%eth0"
    assert is_loopback_name("::1")
    assert not is_loopback_name("fe80::1%eth0")


class TestBrowserGuard:
    def test_an_image_of_another_site_changes_nothing(self) -> None:
        guard = BrowserGuard("0.0.0.0:4151", changes_by_get=["/"])

        with pytest.raises(HttpError, match="CROSS_SITE"):
            guard.check(make_request("GET", host="here", sec_fetch_site="cross-site"))

    @pytest.mark.parametrize(
        "headers",
        [
            {"user_agent": "Mozilla/5.0 (X11)"},
            {"origin": "http://evil.example"},
            {"sec_fetch_site": "same-origin"},
        ],
    )
    def test_a_browser_must_use_a_name_of_loopback(self, headers: dict[str, str]) -> None:
        guard = BrowserGuard("127.0.0.1:4151")

        with pytest.raises(HttpError, match="WRONG_HOST"):
            guard.check(make_request("GET", host="evil.example:4151", **headers))

        guard.check(make_request("GET", host="localhost:4151", **headers))

    @pytest.mark.parametrize("address", ["127.0.0.1:4151", "0.0.0.0:4151", ":4151"])
    def test_tools_use_any_name(self, address: str) -> None:
        request = make_request(host="tunnel.example", user_agent="Go-http-client/1.1")

        BrowserGuard(address).check(request)

    @pytest.mark.parametrize(
        "address", ["0.0.0.0:4151", ":4151", "10.0.0.1:4151", "/run/nsqd.sock"]
    )
    def test_a_daemon_for_the_network_has_any_name(self, address: str) -> None:
        request = make_request(host="nsqd.example", user_agent="Mozilla/5.0")

        BrowserGuard(address).check(request)

    def test_names_can_be_given(self) -> None:
        guard = BrowserGuard("0.0.0.0:4151", allowed_hosts=["nsqd.example"])

        guard.check(make_request(host="nsqd.example:4151", user_agent="Mozilla/5.0"))
        with pytest.raises(HttpError, match="WRONG_HOST"):
            guard.check(make_request(host="evil.example:4151", user_agent="Mozilla/5.0"))
