"""Read arrays from NumPy's files, .npy and .npz; a damaged file is a ValueError, whatever it breaks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def read_array_file(path: str | Path) -> np.ndarray | dict[str, np.ndarray]:
    """Read the array of an .npy file, or the arrays of an .npz file by name.

    NumPy leaves damage to what it reads with: the zip archive, its decompressor, Python's tokenizer. None of them
    agrees with another on what to raise.

    Raises: OSError for a file that cannot be opened; ValueError for one that is damaged, or holds Python objects.
    """
    with Path(path).open("rb") as file:  # NumPy leaves one open that it cannot read
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            return {name: _array(loaded, name) for name in loaded.files}
        except (OSError, ValueError):
            raise
        except Exception as error:  # see above
            raise ValueError(f"the file is damaged: {error}") from error


def _array(archive: Mapping[str, Any], name: str) -> np.ndarray:
    member = archive[name]
    if not isinstance(member, np.ndarray):
        raise ValueError(f"the member {name!r} is no array")  # NumPy returns its bytes
    return member
