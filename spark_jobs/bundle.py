"""A zip of this package and `diskqueue`, for `spark-submit --py-files`."""

import zipfile
from pathlib import Path

import diskqueue

_PACKAGES = (Path(diskqueue.__file__).parent, Path(__file__).parent)


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
