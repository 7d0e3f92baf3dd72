"""Replace a file in one step, and take turns: what is seen under a name is the old file or the new one, whole.

A temporary is a sibling, opened so that no link is followed and nothing is overwritten, and held under a lock that the
system lets go when the process dies. Whoever gets that lock knows that the owner is dead and sweeps the file. Process
numbers would not tell: they repeat, and they mean nothing across containers and hosts that share a disk.

Windows has no O_NOFOLLOW (a fresh random name under O_EXCL stands in), no fsync of a directory (left out), cannot
replace an open file (it is closed first) and cannot remove one that is in use (which protects the living from a sweep).
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from txl_ts.errors import SaveError
from txl_ts.store.caps import LOCK

if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> None:
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _hold(fd: int) -> None:
        """Do nothing: an open file cannot be removed here."""

    def _unlock(fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _try_lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _hold(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)


IS_WINDOWS = sys.platform == "win32"
NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
LOCK_TIMEOUT_S = 60.0
_STALE_S = 3600.0  # only where there is no lock to ask


@contextmanager
def replacing(path: str) -> Iterator[BinaryIO]:
    """Give a new file that takes the place of ``path`` when the block ends, and vanishes when the block raises.

    A link at ``path`` is replaced, not followed.

    Raises
    ------
    OSError
        If anything fails before the replacement; the old file is as it was.
    SaveError
        If the file is in place but the directory could not be flushed.
    """
    folder, name = os.path.split(os.path.abspath(path))
    _sweep(folder, name)
    temporary, file = _create(folder, name)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if IS_WINDOWS:
            file.close()
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            file.close()
        with suppress(OSError):
            os.unlink(temporary)
        raise
    file.close()
    try:
        fsync_folder(folder)
    except OSError as error:
        failed = SaveError(
            f"{path} was replaced, but its folder could not be flushed ({error}): a power cut may undo it. Save again."
        )
        failed.errno = error.errno
        raise failed from error


def create(path: str) -> BinaryIO:
    """Open a file that must not exist yet."""
    return os.fdopen(os.open(path, NEW, 0o666), "w+b")


def fsync_folder(folder: str) -> None:
    """Put the names in a folder on the disk, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot, and say so
            raise
    finally:
        os.close(fd)


@contextmanager
def turn(folder: str, *, timeout_s: float | None = None) -> Iterator[None]:
    """Wait for the one turn to write into ``folder``; it ends with the block, or with the process.

    Raises
    ------
    SaveError
        If the turn does not come within ``timeout_s`` seconds (60 by default).
    """
    limit = LOCK_TIMEOUT_S if timeout_s is None else timeout_s
    fd = os.open(os.path.join(folder, LOCK), NEW & ~os.O_EXCL, 0o666)
    try:
        deadline = time.monotonic() + limit
        while True:
            try:
                _try_lock(fd)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EDEADLK):
                    raise
                if time.monotonic() > deadline:
                    raise SaveError(
                        f"another process has been writing to {folder} for {limit:g} s. Nothing was changed. "
                        f"Give each writer a folder of its own, or save again."
                    ) from error
                time.sleep(0.005)
        try:
            yield
        finally:
            _unlock(fd)  # said aloud, for a child forked meanwhile shares the lock
    finally:
        os.close(fd)


def _stem(name: str) -> str:
    return f".txl-{hashlib.sha256(os.fsencode(name)).hexdigest()[:16]}-"


def _create(folder: str, name: str) -> tuple[str, BinaryIO]:
    while True:
        path = os.path.join(folder, f"{_stem(name)}{secrets.token_hex(8)}.tmp")
        file = create(path)
        try:
            with suppress(OSError):  # a file system without locks is not swept either
                _hold(file.fileno())
            with suppress(FileNotFoundError):  # a sweeper came between creation and lock: once more
                if IS_WINDOWS or os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                    return path, file
        except BaseException:
            file.close()
            raise
        file.close()


def _sweep(folder: str, name: str) -> None:
    """Remove temporaries of dead writers of ``name``; what cannot be removed today is left for the next time."""
    stem = _stem(name)
    with suppress(OSError):
        for entry in os.listdir(folder):
            if entry.startswith(stem) and entry.endswith(".tmp"):
                with suppress(OSError):
                    _remove_if_dead(os.path.join(folder, entry))


def _remove_if_dead(path: str) -> None:
    if IS_WINDOWS:
        if time.time() - os.stat(path).st_mtime > _STALE_S:
            os.unlink(path)
        return
    fd = os.open(path, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        _try_lock(fd)
        os.unlink(path)
    finally:
        os.close(fd)
