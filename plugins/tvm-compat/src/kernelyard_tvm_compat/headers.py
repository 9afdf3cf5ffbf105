"""Headers under the names that C++ code written for TVM includes: `tvm/runtime/packed_func.h` and those beside it.

They stand on the headers of apache-tvm-ffi, which has DLPack's and the calling convention.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).with_name("include")
