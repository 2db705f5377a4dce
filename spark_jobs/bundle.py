"""A zip of this package, `diskqueue` and `nsqd`, for `spark-submit --py-files`.

Of nsqd only the formats of its protocol are used. It is in the zip as a whole, because a part would
hide an installed one: `from nsqd.client import Producer` works in a job as it does elsewhere.
"""

import zipfile
from pathlib import Path

import diskqueue
from nsqd.protocol import client_wire

_PACKAGES = (
    Path(diskqueue.__file__).parent,
    Path(client_wire.__file__).parents[1],
    Path(__file__).parent,
)


def write_bundle(path: Path) -> None:
    """Write the zip: modules and the files beside them, such as the report's templates.

    Raises:
        OSError: it cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for package in _PACKAGES:
            for file in sorted(package.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    bundle.write(file, file.relative_to(package.parent))
