"""Facts and code of a module as bytes: what is read is what was written, and damage is found."""

from __future__ import annotations

import pytest

from kernelyard.errors import ArtifactCorruptedError, ArtifactVersionError
from kernelyard.runtime.modules.packed_module import pack_module, split_code, unpack_module

MAGIC = b"KYACME01"
DATA = pack_module(MAGIC, 3, {"name": "f", "sizes": [2, 0, 4]}, (b"ab", b"", b"code"))


@pytest.mark.parametrize("magic", [b"", MAGIC])
def test_what_is_read_was_written(magic):
    data = pack_module(magic, 3, {"name": "f"}, (b"code",))
    fields, code = unpack_module(data, magic, 3, "acme")
    assert (fields.text("name"), bytes(code)) == ("f", b"code")


def test_the_bytes_stay_the_same():
    header = b'{"name":"f","schema":3,"sizes":[2,0,4]}'
    assert MAGIC + len(header).to_bytes(8, "little") + header + b"abcode" == DATA


def test_code_is_split_by_sizes():
    fields, code = unpack_module(DATA, MAGIC, 3, "acme")
    assert split_code(code, fields.indices("sizes", limit=len(code) + 1), "acme") == [b"ab", b"", b"code"]


@pytest.mark.parametrize("sizes", [[2, 0], [2, 5], []])
def test_sizes_that_are_not_all(sizes):
    _, code = unpack_module(DATA, MAGIC, 3, "acme")
    with pytest.raises(ArtifactCorruptedError, match="malformed"):
        split_code(code, sizes, "acme")


@pytest.mark.parametrize(
    "data", [b"", MAGIC, DATA[:15], DATA[:20], DATA.replace(MAGIC, b"KYACME02"), DATA.replace(b"{", b"[")]
)
def test_damage_is_found(data):
    with pytest.raises(ArtifactCorruptedError) as caught:
        unpack_module(data, MAGIC, 3, "acme")
    assert caught.value.where == "acme"


@pytest.mark.parametrize("schema", [2, 4])
def test_another_schema_is_told_from_damage(schema):
    with pytest.raises(ArtifactVersionError, match="another schema") as caught:
        unpack_module(DATA, MAGIC, schema, "acme")
    assert (caught.value.found, caught.value.expected) == (3, schema)
