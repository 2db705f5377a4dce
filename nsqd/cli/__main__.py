"""The door of `nsq`, also as `python -m nsqd.cli`.

The garbage collector rests while modules are loaded, which make no garbage: that is a tenth of the
time of a small command.
"""

import gc
import os
import sys
from typing import NoReturn


def entry() -> NoReturn:
    """Run a command and leave at once: Python would take 7 ms to tidy up for nobody."""
    gc.disable()
    from nsqd.cli.main import main  # Here: it is most of what there is to load.

    code = main()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    entry()
