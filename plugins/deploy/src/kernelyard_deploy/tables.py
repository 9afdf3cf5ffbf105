"""Tables at rest: rows read in batches, and results written beside them. Parquet by pyarrow, and NumPy's `.npz`.

A table is a file; its rows are named columns. In Parquet a column is of numbers, or of lists of one length, which are
the rows of an input of higher rank; in `.npz` files a column is an array whose first axis is the rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernelyard.runtime.array_files import read_array_file
from kernelyard_deploy.errors import BatchJobError

Columns = dict[str, np.ndarray]
PARQUET, NPZ = ".parquet", ".npz"


class Piece(NamedTuple):
    """Locate some rows of a table: numbers of Parquet's row groups, or the first row and the end in a `.npz` file."""

    rows: int
    parts: tuple[int, ...]


class Column(NamedTuple):
    """Name a column to read, and the shape of its rows: () for numbers."""

    name: str
    shape: tuple[int, ...] = ()


class Format(NamedTuple):
    """Cut, read and write tables of one kind.

    cut: the pieces of a table, of about so many rows. read: batches of a piece's columns. write: batches, to a file.
    """

    cut: Callable[[Path, int], list[Piece]]
    read: Callable[[Path, Piece, Sequence[Column], int], Iterator[Columns]]
    write: Callable[[Path, Iterator[Columns]], int]


def format_of(path: Path) -> Format:
    """Return the format of a table, by its suffix. Raises: BatchJobError for another suffix, or without pyarrow."""
    if path.suffix == NPZ:
        return Format(_cut_npz, _read_npz, _write_npz)
    if path.suffix == PARQUET:
        try:
            import_module("pyarrow.parquet")
        except ModuleNotFoundError as error:
            hint = "pip install 'kernelyard-deploy[parquet]'"
            raise BatchJobError("reading Parquet needs pyarrow", found=str(error), hint=hint) from error
        return Format(_cut_parquet, _read_parquet, _write_parquet)
    raise BatchJobError("a table is of an unknown kind", where=str(path), expected=f"{PARQUET} or {NPZ}")


def column_error(path: Path, column: str, found: object, expected: str) -> BatchJobError:
    """Return the error for a column that does not hold what a model's input needs."""
    return BatchJobError(
        "a column is not what the model takes", where=f"{path}, {column}", found=found, expected=expected
    )


# --- NumPy ------------------------------------------------------------------------------------------------------------
def _cut_npz(path: Path, rows: int) -> list[Piece]:
    counts = {name: len(array) if array.ndim else 0 for name, array in _arrays_of(path).items()}
    if len(set(counts.values())) != 1:
        raise BatchJobError("columns of a table have different numbers of rows", where=str(path), found=counts)
    (count,) = set(counts.values())
    return [Piece(min(rows, count - start), (start, min(count, start + rows))) for start in range(0, count, rows)]


def _arrays_of(path: Path) -> dict[str, np.ndarray]:
    try:
        arrays = read_array_file(path)
        if isinstance(arrays, np.ndarray):
            raise ValueError("it holds one array without a name")
        return arrays
    except (OSError, ValueError) as error:
        raise BatchJobError("a table cannot be read", where=str(path), found=str(error)) from error


def _read_npz(path: Path, piece: Piece, columns: Sequence[Column], batch: int) -> Iterator[Columns]:
    start, stop = piece.parts
    table = _arrays_of(path)
    missing = [each.name for each in columns if each.name not in table]
    if missing:
        raise column_error(path, missing[0], f"columns {', '.join(table)}", "a column of that name")
    arrays = {each.name: table[each.name][start:stop] for each in columns}
    for first in range(0, stop - start, batch):
        yield {name: array[first : first + batch] for name, array in arrays.items()}


def _write_npz(path: Path, batches: Iterator[Columns]) -> int:
    found = list(batches)
    columns = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **columns)
    return sum(len(next(iter(each.values()))) for each in found)


# --- Parquet ----------------------------------------------------------------------------------------------------------
def _cut_parquet(path: Path, rows: int) -> list[Piece]:
    metadata = _open_parquet(path).metadata
    pieces: list[Piece] = []
    for group in range(metadata.num_row_groups):
        count = metadata.row_group(group).num_rows
        if pieces and pieces[-1].rows + count <= rows:
            pieces[-1] = Piece(pieces[-1].rows + count, (*pieces[-1].parts, group))
        elif count:
            pieces.append(Piece(count, (group,)))
    return pieces


def _open_parquet(path: Path) -> Any:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    try:
        return parquet.ParquetFile(path, memory_map=True)
    except (OSError, arrow.ArrowException) as error:
        raise BatchJobError("a table cannot be read", where=str(path), found=str(error)) from error


def _read_parquet(path: Path, piece: Piece, columns: Sequence[Column], batch: int) -> Iterator[Columns]:
    with _open_parquet(path) as file:
        there = file.schema_arrow.names
        missing = [each.name for each in columns if each.name not in there]
        if missing:
            raise column_error(path, missing[0], f"columns {', '.join(there)}", "a column of that name")
        names = [each.name for each in columns]
        # One thread: there is a worker for each processor already.
        for found in file.iter_batches(batch, row_groups=list(piece.parts), columns=names, use_threads=False):
            yield {each.name: _array_of(path, each, found.column(each.name)) for each in columns}


def _array_of(path: Path, column: Column, values: Any) -> np.ndarray:
    """Return an Arrow array as NumPy's, whose rows have the column's shape."""
    types = import_module("pyarrow").types
    if values.null_count:
        raise column_error(path, column.name, f"{values.null_count} nulls", "a value in each row")
    if not column.shape:
        return values.to_numpy(zero_copy_only=False)
    rows, size = len(values), math.prod(column.shape)
    while types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False)).tolist()
        if len(lengths) > 1:
            raise column_error(path, column.name, f"lists of {lengths[0]} to {lengths[-1]}", "lists of one length")
        values = values.flatten()
        if values.null_count:
            raise column_error(path, column.name, "nulls in lists", "numbers")
    if len(values) != rows * size:
        raise column_error(path, column.name, f"{len(values)} numbers in {rows} rows", f"{size} a row, {column.shape}")
    return values.to_numpy(zero_copy_only=False).reshape(rows, *column.shape)


def _write_parquet(path: Path, batches: Iterator[Columns]) -> int:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    writer, rows = None, 0
    try:
        for columns in batches:
            table = arrow.table({name: _arrow_of(arrow, array) for name, array in columns.items()})
            # Floats hardly repeat: a dictionary of them makes files larger, and takes six times as long to write.
            repeating = [name for name, array in columns.items() if array.dtype.kind != "f"]
            writer = writer or parquet.ParquetWriter(path, table.schema, use_dictionary=repeating)
            writer.write_table(table)
            rows += len(table)
    finally:
        if writer is not None:
            writer.close()
    return rows


def _arrow_of(arrow: Any, array: np.ndarray) -> Any:
    if array.ndim < 2:
        return arrow.array(array)
    flat = np.ascontiguousarray(array).reshape(-1)
    return arrow.FixedSizeListArray.from_arrays(arrow.array(flat), math.prod(array.shape[1:]))


def columns_of(inputs: Mapping[str, Sequence[int | str]], keep: Sequence[str]) -> list[Column]:
    """Return the columns that a model reads, whose rows are its inputs' first axis, and those to keep.

    Raises: BatchJobError for an input without rows, or with other sizes that are not known.
    """
    columns: list[Column] = []
    for name, shape in inputs.items():
        if not shape or not all(isinstance(dim, int) for dim in shape[1:]):
            found, expected = list(shape), "rows first, and all other sizes known"
            raise BatchJobError("an input does not take rows of a table", where=name, found=found, expected=expected)
        columns.append(Column(name, tuple(int(dim) for dim in shape[1:])))
    return [*columns, *(Column(name) for name in keep if name not in inputs)]
