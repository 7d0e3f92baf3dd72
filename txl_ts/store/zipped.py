"""One stored zip, spelled in exactly one way: the headers follow from names, sizes and checksums alone.

No clock, no platform, no padding. A reader rebuilds every header from what the directory at the end claims and compares
the bytes, so it needs to trust none of them. Sizes and offsets from 4 GiB on use the 64-bit fields, and only they.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import FileFormatError
from txl_ts.store.caps import CURRENT, is_name, shown

WIDE_FROM = 0xFFFFFFFF
_WIDE = 0xFFFFFFFF  # "see the 64-bit field"
_DATE = 0x0021  # 1980-01-01, the earliest that a zip can say
_MODE = 0o100644 << 16
_ENTRY_CAP = 64
_TAIL = _ENTRY_CAP * (46 + 128 + 28) + 56 + 20 + 22
_HINT = "Take another copy of the file; if another tool packed it, unpack it and load the folder."


class Digest(NamedTuple):
    """What was poured into a file: bytes, sha256 and CRC-32."""

    size: int
    sha256: str
    crc: int


class Entry(NamedTuple):
    """One file of the zip, and where its local header begins."""

    name: str
    size: int
    crc: int
    offset: int

    def local(self) -> bytes:
        """Spell the header in front of the data."""
        wide = self.size >= WIDE_FROM
        size = _WIDE if wide else self.size
        extra = struct.pack("<HHQQ", 1, 16, self.size, self.size) if wide else b""
        name = self.name.encode("ascii")
        head = struct.pack(
            "<4s5H3I2H", b"PK\3\4", 45 if wide else 20, 0, 0, 0, _DATE, self.crc, size, size, len(name), len(extra)
        )
        return head + name + extra

    def central(self) -> bytes:
        """Spell the entry in the directory at the end."""
        wide, far = self.size >= WIDE_FROM, self.offset >= WIDE_FROM
        size, offset = _WIDE if wide else self.size, _WIDE if far else self.offset
        fields = [self.size, self.size] * wide + [self.offset] * far
        extra = struct.pack(f"<HH{len(fields)}Q", 1, 8 * len(fields), *fields) if fields else b""
        name = self.name.encode("ascii")
        version = 45 if fields else 20
        head = struct.pack(
            "<4s6H3I5H2I", b"PK\1\2", 3 << 8 | version, version, 0, 0, 0, _DATE, self.crc, size, size,
            len(name), len(extra), 0, 0, 0, _MODE, offset,
        )  # fmt: skip
        return head + name + extra

    def data_at(self) -> int:
        """Give the offset of the first byte of data."""
        return self.offset + len(self.local())


def directory(entries: list[Entry], offset: int) -> bytes:
    """Spell everything behind the last file, for a directory that begins at ``offset``."""
    central = b"".join(entry.central() for entry in entries)
    n, far = len(entries), offset >= WIDE_FROM
    wide = b""
    if far:
        wide = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 3 << 8 | 45, 45, 0, 0, n, n, len(central), offset)
        wide += struct.pack("<4sIQI", b"PK\6\7", 0, offset + len(central), 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, n, n, len(central), _WIDE if far else offset, 0)
    return central + wide + end


def pour(chunks: Iterable[bytes | memoryview], file: BinaryIO) -> Digest:
    """Write chunks to a file and hash them on the way."""
    sha, crc, size = hashlib.sha256(), 0, 0
    for chunk in chunks:
        sha.update(chunk)
        crc = zlib.crc32(chunk, crc)
        file.write(chunk)
        size += len(chunk)
    return Digest(size, sha.hexdigest(), crc)


class ZipWriter:
    """Write a tree into a new, seekable file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._entries: list[Entry] = []

    def add(self, name: str, size: int, chunks: Iterable[bytes | memoryview]) -> Digest:
        """Add a file of known size; its checksum is put into its header afterwards."""
        entry = Entry(name, size, 0, self._file.tell())
        self._file.write(entry.local())
        digest = pour(chunks, self._file)
        assert digest.size == size, (name, digest.size, size)
        entry = entry._replace(crc=digest.crc)
        self._file.seek(entry.offset)
        self._file.write(entry.local())
        self._file.seek(0, os.SEEK_END)
        self._entries.append(entry)
        return digest

    def finish(self) -> None:
        """Write the directory."""
        self._file.write(directory(self._entries, self._file.tell()))


class ZipTree:
    """Read a tree from a zip of ours."""

    is_closed_set = True  # what the manifest does not name must not be there

    def __init__(self, file: BinaryIO, where: str) -> None:
        self._file = file
        self._where = where
        self._entries = {entry.name: entry for entry in self._checked_entries()}

    def names(self) -> set[str]:
        """Give the names of all files."""
        return set(self._entries)

    def size(self, name: str) -> int:
        """Give the size of a file in bytes."""
        if name not in self._entries:
            raise FileFormatError(f"{self._where}: the file {shown(name)} is missing. {_HINT}")
        return self._entries[name].size

    def read(self, name: str, *, cap: int) -> NDArray[np.uint8]:
        """Read a whole file of at most ``cap`` bytes."""
        size = self.size(name)
        if size > cap:
            raise FileFormatError(f"{self._where}: {shown(name)} has {size} bytes, at most {cap} are read. {_HINT}")
        entry = self._entries[name]
        buffer = np.empty(size, np.uint8)
        self._file.seek(entry.data_at())
        if not fill(buffer, self._file) or zlib.crc32(buffer.data) != entry.crc:
            raise FileFormatError(f"{self._where}: {shown(name)} is damaged, its CRC-32 does not match. {_HINT}")
        return buffer

    def current(self) -> bytes:
        """Read ``CURRENT``."""
        return self.read(CURRENT, cap=256).tobytes()

    def _checked_entries(self) -> list[Entry]:
        size = self._file.seek(0, os.SEEK_END)
        tail = self._span(max(0, size - _TAIL), size)
        if len(tail) < 22 or tail[-22:-18] != b"PK\5\6":
            raise FileFormatError(f"{self._where} is cut off: the zip directory at its end is missing. {_HINT}")
        n, central_size, offset = struct.unpack("<HII", tail[-12:-2])
        if offset == _WIDE and tail[-98:-94] == b"PK\6\6":
            offset = struct.unpack("<Q", tail[-50:-42])[0]
        if n > _ENTRY_CAP or not size - len(tail) <= offset <= size - central_size:
            raise FileFormatError(f"{self._where}: the zip directory claims {n} files from byte {offset} on. {_HINT}")
        tail = tail[offset - (size - len(tail)) :]
        entries = self._parsed(tail, n, offset)
        if tail != directory(entries, offset):
            raise FileFormatError(
                f"{self._where}: the zip directory is damaged or not as txl_ts.store writes it. {_HINT}"
            )
        position = 0
        for entry in entries:
            local = entry.local()
            if entry.offset != position or self._span(position, position + len(local)) != local:
                raise FileFormatError(f"{self._where}: the zip header of {shown(entry.name)} is damaged. {_HINT}")
            position += len(local) + entry.size
        if position != offset:
            raise FileFormatError(
                f"{self._where}: {offset - position} bytes between the files and the directory. {_HINT}"
            )
        return entries

    def _parsed(self, tail: bytes, n: int, end: int) -> list[Entry]:
        entries: list[Entry] = []
        at = 0
        for _ in range(n):
            fixed = tail[at : at + 46]
            if len(fixed) < 46:
                raise FileFormatError(f"{self._where}: the zip directory is cut off. {_HINT}")
            method, _, _, crc, _, size, n_name, n_extra, n_comment = struct.unpack("<3H3I3H", fixed[10:34])
            offset = struct.unpack("<I", fixed[42:])[0]
            raw = tail[at + 46 : at + 46 + n_name]
            name = raw.decode("latin-1")
            extra = tail[at + 46 + n_name : at + 46 + n_name + n_extra]
            at += 46 + n_name + n_extra + n_comment
            wide = list(
                struct.unpack(f"<{max(0, len(extra) - 4) // 8}Q", extra[4 : 4 + max(0, len(extra) - 4) // 8 * 8])
            )
            size = wide[0] if size == _WIDE and wide else size
            offset = wide[-1] if offset == _WIDE and wide else offset
            self._check_entry(name, method, size, end, [entry.name for entry in entries])
            entries.append(Entry(name, size, crc, offset))
        return entries

    def _check_entry(self, name: str, method: int, size: int, end: int, earlier: list[str]) -> None:
        if not is_name(name):
            raise FileFormatError(f"{self._where}: the entry {shown(name)} has a name that is not taken. {_HINT}")
        if name in earlier:
            raise FileFormatError(f"{self._where}: the entry {shown(name)} is there twice. {_HINT}")
        if method != 0:
            raise FileFormatError(f"{self._where}: the entry {shown(name)} is compressed (method {method}). {_HINT}")
        if size > end:
            raise FileFormatError(
                f"{self._where}: the entry {shown(name)} claims {size} bytes, more than are there. {_HINT}"
            )

    def _span(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        return self._file.read(end - begin)


def fill(buffer: NDArray[np.uint8], file: BinaryIO) -> bool:
    """Read until the buffer is full; False if the file ends before."""
    view, at = buffer.data, 0
    while at < len(view):
        n = file.readinto(view[at:])  # type: ignore[attr-defined]
        if not n:
            return False
        at += n
    return True
