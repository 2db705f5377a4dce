from nsqd.config.options import Options, check_values
from nsqd.settings import broker_settings


def test_no_messages_between_fsyncs_are_one_as_in_nsqd() -> None:
    options = Options(sync_every=0)

    check_values(options)

    assert broker_settings(options).disk.sync_every == 1
