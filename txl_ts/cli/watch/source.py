"""Where lines come from: a file that can be read again from any byte, or a pipe that cannot."""

from __future__ import annotations

import hashlib
import os
import select
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from txl_ts.errors import ParameterError

_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_BLOCK = 2**16
_LONGEST = 2**20  # bytes of a line; what is longer comes in pieces, of which none can be read
_SEAM = 4096  # bytes before a position, by which a file is known again


class Source(Protocol):
    """Lines, one after the other.

    Attributes
    ----------
    n_lines : int
        Lines given out so far, of the file that is read now.
    is_replayable : bool
        True if it can be read again from where a snapshot was made.
    """

    n_lines: int
    is_replayable: bool

    def __iter__(self) -> Iterator[bytes | None]:
        """Give lines with their ends; None before each wait for more."""
        ...

    def position(self) -> dict[str, Any]:
        """Say where the next line begins; plain JSON."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class PipeSource:
    """Reads what comes, once.

    Attributes
    ----------
    wake : int or None
        A descriptor that can be read once a signal has come: it ends a wait.
    """

    is_replayable = False

    def __init__(self, fd: int) -> None:
        self._fd, self.n_lines = fd, 0
        self.wake: int | None = None

    def position(self) -> dict[str, Any]:
        """Count the lines; they do not come again."""
        return {"kind": "pipe", "lines": self.n_lines}

    def close(self) -> None:
        """Let the pipe go, unless it is standard input."""
        if self._fd > 2:
            os.close(self._fd)

    def __iter__(self) -> Iterator[bytes | None]:
        """Give lines until the writer closes."""
        rest = b""
        while True:
            yield None
            if not self._has_more():
                continue  # the reader is asked again whether it wants to go on
            block = os.read(self._fd, _BLOCK)
            whole, rest = _whole(_split(rest + block), is_last=not block)
            for line in whole:
                self.n_lines += 1
                yield line
            if not block:
                return

    def _has_more(self) -> bool:
        """Wait; False if a signal came first, also one that came just before the wait began."""
        if self.wake is None:
            return True
        ready, _, _ = select.select([self._fd, self.wake], [], [])
        if self.wake in ready:
            os.read(self.wake, _BLOCK)
        return self._fd in ready


class FileSource:
    """Reads a file; with ``follow`` it goes on as the file grows, is cut off, or another takes its name.

    Parameters
    ----------
    path : Path or int
        An int is a file that is open already.
    follow : bool
    wait : callable
        Called when there is nothing to read.
    """

    is_replayable = True

    def __init__(self, path: Path | int, *, follow: bool = False, wait: Callable[[], None] = lambda: None) -> None:
        self._path, self._follow, self._wait = path, follow, wait
        self._fd = path if isinstance(path, int) else os.open(path, _READ)
        self._offset, self.n_lines = 0, 0
        self._later: list[Path] = []  # files that are to be read after this one

    def position(self) -> dict[str, Any]:
        """Give the byte at which the next line begins, and a hash of what stands before it."""
        return {"kind": "file", "offset": self._offset, "lines": self.n_lines, "seam": _seam(self._fd, self._offset)}

    def close(self) -> None:
        """Let the file go, unless it is standard input."""
        if self._fd > 2:
            os.close(self._fd)

    def go_on(self, position: dict[str, Any]) -> bool:
        """Go on from a position; False, and nothing is done, if no file here has these bytes before it.

        A file that was rotated is found as ``NAME.*`` beside it, and is read to its end first.
        """
        if position["kind"] != "file":
            return False
        offset = int(position["offset"])
        if _seam(self._fd, offset) != position["seam"]:
            older = self._rotated(offset, position["seam"])
            if older is None:
                return False
            assert isinstance(self._path, Path)
            self._later = [self._path]
            self._take(older)
        self._offset, self.n_lines = offset, int(position["lines"])
        return True

    def _rotated(self, offset: int, seam: str) -> Path | None:
        if not isinstance(self._path, Path):
            return None
        for other in sorted(self._path.parent.glob(f"{self._path.name}.*")):
            if other.is_file():
                fd = os.open(other, _READ)
                try:
                    if _seam(fd, offset) == seam:
                        return other
                finally:
                    os.close(fd)
        return None

    def __iter__(self) -> Iterator[bytes | None]:
        """Give lines until the end of the file, or for ever."""
        while True:
            yield from self._to_end()
            if self._later:
                self._open(self._later.pop())
            elif not self._follow:
                return
            elif self._was_replaced():
                yield from self._to_end(is_last=True)
                self._open(self._path)
            elif os.fstat(self._fd).st_size < self._offset:
                self._offset, self.n_lines = 0, 0
            else:
                self._wait()

    def _to_end(self, *, is_last: bool = False) -> Iterator[bytes | None]:
        is_last = is_last or not self._follow or bool(self._later)
        rest = b""
        while True:
            yield None
            block = _read_at(self._fd, self._offset + len(rest), _BLOCK)
            whole, rest = _whole(_split(rest + block), is_last=is_last and not block)
            for line in whole:
                self._offset += len(line)
                self.n_lines += 1
                yield line
            if not block:
                return

    def _was_replaced(self) -> bool:
        try:
            return isinstance(self._path, Path) and not os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except FileNotFoundError:  # moved away, and the new one is not there yet
            return False

    def _open(self, path: Path | int) -> None:
        assert isinstance(path, Path)
        self._take(path)
        self._offset, self.n_lines = 0, 0

    def _take(self, path: Path) -> None:
        fd = os.open(path, _READ)  # first: where it fails, the one before is still ours to close
        os.close(self._fd)
        self._fd = fd


def open_source(path: Path | None, *, follow: bool, wait: Callable[[], None]) -> FileSource | PipeSource:
    """Open a file or a pipe; None is standard input, which may be either.

    Raises
    ------
    ParameterError
        If it cannot be read.
    """
    try:
        if path is None:
            is_file = stat.S_ISREG(os.fstat(0).st_mode)
            return FileSource(0, follow=follow, wait=wait) if is_file else PipeSource(0)
        if stat.S_ISREG(os.stat(path).st_mode):
            return FileSource(path, follow=follow, wait=wait)
        return PipeSource(os.open(path, _READ))
    except OSError as error:
        raise ParameterError(
            f"the lines cannot be read: {error}. Name a file, or give them to standard input."
        ) from error


def _split(text: bytes) -> list[bytes]:
    """Cut behind each newline, and nowhere else."""
    pieces = text.split(b"\n")
    return [*(piece + b"\n" for piece in pieces[:-1]), *([pieces[-1]] if pieces[-1] else [])]


def _whole(pieces: list[bytes], *, is_last: bool) -> tuple[list[bytes], bytes]:
    """Tell lines that are complete from the beginning of the next."""
    if pieces and not pieces[-1].endswith(b"\n") and not is_last and len(pieces[-1]) < _LONGEST:
        return pieces[:-1], pieces[-1]
    return pieces, b""


def _read_at(fd: int, offset: int, n: int) -> bytes:
    os.lseek(fd, offset, os.SEEK_SET)
    return os.read(fd, n)


def _seam(fd: int, offset: int) -> str:
    if os.fstat(fd).st_size < offset:
        return ""
    first = max(0, offset - _SEAM)
    return hashlib.sha256(_read_at(fd, first, offset - first)).hexdigest()
