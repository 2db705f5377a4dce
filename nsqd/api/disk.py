"""What HTTP answers when the disk refuses something: 503, a code, and the reason in one line."""

from nsqd.broker.health import FULL_ERRNOS
from nsqd.http.server import HttpError
from nsqd.protocol.causes import cause_of


def disk_error(error: OSError) -> HttpError:
    """Return the error for the client; nsqd calls all of these EXITING."""
    code = "DISK_FULL" if error.errno in FULL_ERRNOS else "DISK_ERROR"
    return HttpError(503, f"{code}: {cause_of(error)}")
