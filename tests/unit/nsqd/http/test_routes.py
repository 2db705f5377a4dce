import pytest

from nsqd.http import routes
from nsqd.http.routes import (
    JSON_CONTENT_TYPE,
    MAX_CACHED_TARGET_BYTES,
    MAX_CACHED_TARGETS,
    OK,
    TEXT_CONTENT_TYPE,
    HttpError,
    Request,
    Response,
    Route,
    Router,
    Style,
    answer,
)

DATE = b"Date: Mon, 16 Nov 2026 00:00:00 GMT\r\n"


def ok(request: Request) -> Response:
    return OK


def make_router() -> Router:
    router = Router()
    router.add("GET", "/ping", ok, style=Style.PLAIN)
    router.add("POST", "/pub", ok)
    router.add("GET", "/config/:opt", ok)
    router.add("PUT", "/config/:opt", ok)
    router.add("GET", "/debug/pprof/", ok)
    return router


def ask(router: Router, method: str, target: str) -> tuple[Route, Request, Response]:
    parsed = router.target(target.encode())
    route = router.resolve(parsed, method.encode())
    request = Request(method.encode(), parsed, route, {}, "127.0.0.1:1", is_tls=False)
    response = route.handler(request)
    assert isinstance(response, Response)
    return route, request, response


def status(method: str, target: str) -> int:
    return ask(make_router(), method, target)[2].status


# Routing


def test_known_path_and_method_reaches_its_handler() -> None:
    router = make_router()

    route, request, response = ask(router, "POST", "/pub?topic=t")

    assert response is OK
    assert route.style is Style.V1
    assert (request.path, request.raw_query, request.method) == ("/pub", b"topic=t", "POST")
    assert request.uri == "/pub?topic=t"


def test_has_path_whatever_the_method() -> None:
    router = make_router()

    assert router.has_path("/pub")
    assert not any(map(router.has_path, ("/nope", "/pub/", "/debug/pprof", "/config/x")))


def test_unknown_path_is_404() -> None:  # H-3
    route, _, response = ask(make_router(), "GET", "/nope")

    assert (response.status, response.body) == (404, b'{"message":"NOT_FOUND"}')
    assert response.content_type == JSON_CONTENT_TYPE
    assert route.style is Style.V1


@pytest.mark.parametrize("method", ["POST", "HEAD", "DELETE", "PUT"])
def test_other_method_is_405_with_sorted_allow(method: str) -> None:  # H-4, H-5
    _, _, response = ask(make_router(), method, "/ping")

    assert (response.status, response.body) == (405, b'{"message":"METHOD_NOT_ALLOWED"}')
    assert response.headers == {"Allow": "GET, OPTIONS"}


def test_options_lists_the_methods_of_a_path() -> None:  # H-6
    route, _, response = ask(make_router(), "OPTIONS", "/config/id")

    assert (response.status, response.body) == (200, b"")
    assert response.headers == {"Allow": "GET, OPTIONS, PUT"}
    assert route.style is Style.PLAIN


def test_options_of_an_unknown_path_is_404() -> None:
    assert status("OPTIONS", "/nope") == 404


def test_options_of_the_whole_server_lists_all_methods() -> None:
    _, _, response = ask(make_router(), "OPTIONS", "*")

    assert response.headers == {"Allow": "GET, OPTIONS, POST, PUT"}


def test_a_method_may_not_be_added_twice() -> None:
    router = make_router()

    with pytest.raises(ValueError, match="GET /ping is taken"):
        router.add("GET", "/ping", ok)


def test_a_path_begins_with_a_slash() -> None:
    with pytest.raises(ValueError, match="slash"):
        Router().add("GET", "ping", ok)


def test_a_route_added_late_is_found() -> None:
    router = make_router()
    assert ask(router, "GET", "/late")[2].status == 404

    router.add("GET", "/late", ok)

    assert ask(router, "GET", "/late")[2] is OK


# Path parameter


def test_the_last_segment_is_the_parameter() -> None:
    _, request, response = ask(make_router(), "GET", "/config/log_level?x=1")

    assert response is OK
    assert request.params == ("log_level",)


@pytest.mark.parametrize("target", ["/config", "/config/", "/config/a/b", "/config/a%2Fb"])
def test_the_parameter_is_one_segment(target: str) -> None:  # H-52
    assert status("GET", target) == 404


def test_the_parameter_is_decoded() -> None:
    assert ask(make_router(), "GET", "/config/a%20b%C3%A9")[1].params == ("a bé",)


def test_a_path_has_several_parameters() -> None:
    router = Router()
    router.add("GET", "/topics/:topic", ok)
    router.add("DELETE", "/topics/:topic/:channel", ok)

    assert ask(router, "GET", "/topics/x%23ephemeral")[1].params == ("x#ephemeral",)
    assert ask(router, "DELETE", "/topics/t/c")[1].params == ("t", "c")
    assert ask(router, "GET", "/topics/t/c")[2].status == 405
    assert ask(router, "DELETE", "/topics//c")[2].headers == {}
    assert ask(router, "DELETE", "/Topics/T/c/")[2].headers == {"Location": "/topics/T/c"}


# Redirects


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/PING", "/ping"),
        ("/ping/", "/ping"),
        ("//ping", "/ping"),
        ("/./ping", "/ping"),
        ("/x/../ping", "/ping"),
        ("/../../ping", "/ping"),
        ("/Ping//?a=b&c", "/ping?a=b&c"),
        ("/debug/pprof", "/debug/pprof/"),
        ("/DEBUG//pprof/", "/debug/pprof/"),
        ("/CONFIG/Id", "/config/Id"),
        ("/config/Id/", "/config/Id"),
        ("/CONFIG/a%0d%0aX:%20y", "/config/a%0D%0AX%3A%20y"),
        ("/CONFIG/%22%3e", "/config/%22%3E"),
    ],
)
def test_get_of_an_unclean_path_redirects(target: str, location: str) -> None:  # H-7
    route, _, response = ask(make_router(), "GET", target)

    assert response.status == 301
    assert response.headers == {"Location": location}
    assert response.content_type == "text/html; charset=utf-8"
    assert response.body.startswith(b'<a href="/')
    assert route.style is Style.PLAIN


def test_post_of_an_unclean_path_redirects_with_its_query() -> None:  # H-7
    _, _, response = ask(make_router(), "POST", "/PUB/?topic=t&defer=1")

    assert (response.status, response.body) == (307, b"")
    assert response.headers == {"Location": "/pub?topic=t&defer=1"}


def test_html_in_a_redirect_is_escaped() -> None:
    _, _, response = ask(make_router(), "GET", '/PING?"><script>&')

    assert b"<script>" not in response.body
    assert b"&quot;&gt;&lt;script&gt;&amp;" in response.body


def test_a_redirect_needs_the_method_at_its_end() -> None:
    assert status("GET", "/PUB") == 404
    assert status("HEAD", "/ping/") == 404


def test_a_redirect_never_leaves_the_host() -> None:
    _, _, response = ask(make_router(), "GET", "//evil.example/..//ping")

    assert response.headers["Location"] == "/ping"


# Targets


def test_absolute_form_is_understood() -> None:
    _, request, response = ask(make_router(), "GET", "http://localhost:4151/ping?x")

    assert response is OK
    assert (request.path, request.raw_query) == ("/ping", b"x")


@pytest.mark.parametrize("target", ["localhost:4151", "/pi%ng", "/%", "*"])
def test_a_target_without_a_path_is_400_and_closes(target: str) -> None:
    route, _, response = ask(make_router(), "GET", target)

    assert (response.status, response.body) == (400, b'{"message":"BAD_REQUEST"}')
    assert route.closes


def test_an_escaped_path_is_decoded() -> None:
    assert status("GET", "/p%69ng") == 200


def test_targets_are_remembered_up_to_a_bound() -> None:
    router = make_router()
    first = router.target(b"/ping?0")
    assert router.target(b"/ping?0") is first

    for number in range(MAX_CACHED_TARGETS):
        router.target(b"/ping?x%d" % number)

    assert router.target(b"/ping?0") is not first


def test_a_long_target_is_not_remembered() -> None:
    router = make_router()
    raw = b"/ping?" + b"x" * MAX_CACHED_TARGET_BYTES

    assert router.target(raw) is not router.target(raw)


# Errors of handlers


def test_an_http_error_answers_in_the_style_of_the_route() -> None:
    def refuse(request: Request) -> Response:
        raise HttpError(400, "NO")

    _, request, _ = ask(make_router(), "GET", "/ping")

    reply = answer(request, refuse, request)

    assert isinstance(reply, Response)
    assert (reply.status, reply.body) == (400, b"NO")


def test_a_crash_is_logged_once_and_answered_with_500(caplog: pytest.LogCaptureFixture) -> None:
    def crash(request: Request) -> Response:
        raise KeyError("secret")

    _, request, _ = ask(make_router(), "POST", "/pub?topic=t")

    reply = answer(request, crash, request)

    assert isinstance(reply, Response)
    assert (reply.status, reply.body) == (500, b'{"message":"INTERNAL_ERROR"}')
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info is not None
    assert caplog.records[0].getMessage() == "handler failed method=POST uri=/pub?topic=t"


def test_a_failed_assertion_passes_through() -> None:
    def broken(request: Request) -> Response:
        raise AssertionError

    _, request, _ = ask(make_router(), "GET", "/ping")

    with pytest.raises(AssertionError):
        answer(request, broken, request)


def test_a_body_in_parts_is_as_long_as_all_of_them() -> None:
    response = Response.in_parts([b"one", b"two", b"three"], TEXT_CONTENT_TYPE)

    head = response.encode_head(Style.V1, b"")

    assert b"Content-Length: 11\r\n" in head
    assert b"Content-Type: text/plain; charset=utf-8\r\n" in head
    assert (response.body, list(response.more)) == (b"one", [b"two", b"three"])


def test_targets_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_CACHED_TARGETS", 3)
    monkeypatch.setattr(routes, "MAX_CACHED_TARGET_BYTES", 4)
    router = Router()
    raws = [b"/a", b"/b", b"/ccc"]
    targets = [router.target(raw) for raw in raws]

    assert [router.target(raw) for raw in raws] == targets
    assert router.target(b"/long") is not router.target(b"/long")
    assert [router.target(raw) for raw in raws] == targets
    router.target(b"/d")  # one too many: all are forgotten
    assert router.target(b"/a") is not targets[0]


@pytest.mark.parametrize(
    ("target", "location"),
    [("//a", "/a"), ("/A", "/a"), ("//a/", "/a/"), ("/A/", "/a/"), ("//", "/"), ("/./", "/")],
)
def test_a_redirect_keeps_the_slash_at_the_end(target: str, location: str) -> None:
    router = Router()
    for path in ("/", "/a", "/a/"):
        router.add("GET", path, lambda _request: OK)

    assert ask(router, "GET", target)[2].headers == {"Location": location}
