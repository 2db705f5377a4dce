import os
from pathlib import Path

import pytest

from nsqd.config.flags import OptionsError
from nsqd.runtime.data_path import lock_directory


def test_a_second_lock_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = lock_directory(tmp_path)

    with pytest.raises(OptionsError, match="possibly in use by another instance of nsqd"):
        lock_directory(tmp_path)

    os.close(first)
    os.close(lock_directory(tmp_path))


def test_a_file_is_no_data_path(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()

    with pytest.raises(OptionsError) as caught:
        lock_directory(path)

    assert str(caught.value) == f"failed to lock data-path: open {path}: not a directory"


def test_a_data_path_is_not_made(tmp_path: Path) -> None:  # O-12
    path = tmp_path / "missing"

    with pytest.raises(OptionsError) as caught:
        lock_directory(path)

    assert str(caught.value) == f"failed to lock data-path: open {path}: no such file or directory"
    assert not path.exists()
