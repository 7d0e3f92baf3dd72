"""Read a tree from a directory: plain files only, links are never followed."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import FileFormatError
from txl_ts.store.caps import CURRENT, CURRENT_CAP, is_name, shown
from txl_ts.store.zipped import fill

_HINT = "Take another copy of the folder, or save it again."


class FolderTree:
    """Read a tree from a directory; files that the manifest does not name are not looked at."""

    is_closed_set = False

    def __init__(self, path: str, where: str) -> None:
        self._path = path
        self._where = where

    def names(self) -> set[str]:
        """Give the names of all files."""
        return set(os.listdir(self._path))

    def size(self, name: str) -> int:
        """Give the size of a file in bytes."""
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    def read(self, name: str, *, cap: int) -> NDArray[np.uint8]:
        """Read a whole file of at most ``cap`` bytes."""
        with self._open(name) as file:
            size = os.fstat(file.fileno()).st_size
            if size > cap:
                raise FileFormatError(f"{self._where}: {shown(name)} has {size} bytes, at most {cap} are read. {_HINT}")
            buffer = np.empty(size, np.uint8)
            if not fill(buffer, file):
                raise FileFormatError(f"{self._where}: {shown(name)} became shorter while it was read. {_HINT}")
            return buffer

    def current(self) -> bytes:
        """Read ``CURRENT``."""
        return self.read(CURRENT, cap=CURRENT_CAP).tobytes()

    def _open(self, name: str) -> BinaryIO:
        assert is_name(name), name
        path = os.path.join(self._path, name)
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode):  # for systems without O_NOFOLLOW, and for the message
                raise FileFormatError(f"{self._where}: {shown(name)} is a link, and links are not followed. {_HINT}")
            return open_regular(path, self._where, links=False)
        except FileNotFoundError:
            raise FileFormatError(
                f"{self._where}: {shown(name)} is missing: no save was completed here, or it was removed. {_HINT}"
            ) from None


def open_regular(path: str, where: str, *, links: bool) -> BinaryIO:
    """Open a plain file for reading; a pipe, a socket or a device is refused without waiting for it."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if not links:
        flags |= getattr(os, "O_NOFOLLOW", 0)
    if stat.S_ISREG(os.stat(path, follow_symlinks=links).st_mode):
        fd = os.open(path, flags)
        if stat.S_ISREG(os.fstat(fd).st_mode):  # it may have been exchanged in between
            return os.fdopen(fd, "rb")
        os.close(fd)
    raise FileFormatError(f"{where}: {shown(os.path.basename(path))} is not a plain file. {_HINT}")
