"""Write what cuDNN knows of the GPU, which plans are made from where there is none: `properties.py FILE`."""

from __future__ import annotations

import sys
from pathlib import Path


def main(path: Path) -> int:
    """Return 1 without a GPU, or without cuDNN's frontend."""
    try:
        import cudnn

        text = cudnn.create_device_properties(0).serialize()
    except Exception as error:  # of cuDNN's own kinds
        print(f"no properties: {type(error).__name__}: {error}")
        return 1
    path.write_text(text if isinstance(text, str) else str(list(text)), encoding="utf-8")
    print(f"{len(text)} bytes in {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
