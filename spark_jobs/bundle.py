"""A zip of this package and `diskqueue`, for `spark-submit --py-files`."""

import zipfile
from pathlib import Path

import diskqueue

_PACKAGES = (Path(diskqueue.__file__).parent, Path(__file__).parent)


def write_bundle(path: Path) -> None:
    """Writes the zip.

    Raises:
        OSError: it cannot be written.
    """
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as bundle:
        for package in _PACKAGES:
            for module in sorted(package.rglob("*.py")):
                bundle.write(module, module.relative_to(package.parent))
