"""Generation: the random name that tells a queue from others of the same name before or after it.

A position in a queue means something only within one generation: a topic that is deleted and made
anew may begin with segment 0 again. The name is in `NAME.diskqueue.generation`, which is written at
the first sync of a queue that has records, and when the name is asked for; removed with the queue.
A queue of go-diskqueue gets one then too.
"""

import threading

from diskqueue import layout
from diskqueue.sidecars.identity import make_identity, read_identity, write_identity


class Generation:
    """The generation of one queue; the file is looked at when it is first needed."""

    def __init__(self, directory: str, name: str) -> None:
        self._path = layout.generation_path(directory, name)
        self._value: str | None = None
        # Raised by `end`: a name from before is not believed any more, nor a file that has it.
        self._number = 0
        self._is_file_believed = True
        # Held by the one thread that reads and writes the file.
        self._lock = threading.Lock()

    @property
    def is_stored(self) -> bool:
        """Whether the name is known, and durable in its file."""
        return self._value is not None

    @property
    def stored(self) -> str | None:
        """The name, if it is known and durable in its file."""
        return self._value

    def ensure(self) -> str:
        """Return the name, from its file, or a new one that is in its file by then; block.

        Raises:
            OSError: the file cannot be read or written.
        """
        with self._lock:
            # Ends: the number is raised only when the queue is removed.
            while (value := self._value) is None:
                self._find()
            return value

    def _find(self) -> None:
        number = self._number
        value = read_identity(self._path) if self._is_file_believed else None
        if value is None:
            value = make_identity()
            write_identity(self._path, value)
        if self._number == number:
            self._value = value
            self._is_file_believed = True

    def end(self) -> None:
        """Have another name from now on: the queue is being removed, or made anew; never wait."""
        self._number += 1
        self._value = None
        self._is_file_believed = False
