import logging

import pytest

from nsqadmin.access.notifications import MAX_WAITING, Notifications
from nsqd.http.routes import Request, Response, Route, Target

REQUEST = Request(
    b"POST",
    Target(b"/api/topics/orders"),
    Route.fixed(Response(200, b"")),
    {b"host": b"console.example"},
    "127.0.0.1:1",
    is_tls=False,
)


async def test_a_thousand_wait_and_those_beyond_are_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # Not started: as with an endpoint that never answers.
    notifications = Notifications("http://endpoint.example/")

    for number in range(MAX_WAITING + 5):
        notifications.note(REQUEST, "pause_topic", topic=f"topic_{number}")

    assert MAX_WAITING == 1000
    assert (notifications.waiting_count, notifications.dropped_count) == (1000, 5)
    # The first, the second and the fourth are told of: a dead endpoint must not fill the log.
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert "too many wait dropped=4" in caplog.text
    await notifications.close()


async def test_without_an_endpoint_nothing_is_kept() -> None:
    notifications = Notifications("")

    notifications.note(REQUEST, "pause_topic", topic="orders")

    assert (notifications.waiting_count, notifications.dropped_count) == (0, 0)
    await notifications.close()
