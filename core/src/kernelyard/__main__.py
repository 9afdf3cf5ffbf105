"""`kernelyard`, and `python -m kernelyard`: the command line, for the interpreter at hand."""

from __future__ import annotations

import faulthandler
import os
import signal
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)  # as shells report it; nothing is open yet


def main() -> None:
    """Run the command line. Ctrl-C while it is imported ends it without a word of what was imported; a crash in native
    code of a plugin says in which file and line it was.
    """
    faulthandler.enable(2)
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a caller may ignore it
    if is_default:
        signal.signal(signal.SIGINT, _leave)
    from kernelyard.cli.main import main as run

    if is_default:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:  # before or after what the command itself takes care of
        _leave(signal.SIGINT, None)


if __name__ == "__main__":
    main()
