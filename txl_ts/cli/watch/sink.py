"""Where lines go: each once, also after a kill, if they can be looked at again."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from txl_ts.errors import SaveError

_FULL = 2**16  # bytes
_SEAM = 4096
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


class Sink:
    """JSON lines into a file or a pipe.

    A snapshot remembers how long the file was (``position``). After a kill the file may hold more, which the rows since
    the snapshot gave: ``go_on`` reads it, drops a last line that was torn, and what is there already is not written
    again when the same rows come again. Of a pipe nothing can be read; lines that it did not take, because the reader
    was gone, are in the snapshot and go first.

    Parameters
    ----------
    fd : int
        Open for writing. A file must be appended to.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._waiting: list[bytes] = []
        self._n_waiting = 0
        self._there: set[str] = set()
        self.n_there = 0

    @classmethod
    def open(cls, path: Path) -> Sink:
        """Open a file to append to.

        Raises
        ------
        SaveError
            If it cannot be.
        """
        try:
            return cls(os.open(path, _APPEND, 0o666))
        except OSError as error:
            raise SaveError(f"{str(path)!r} cannot be written: {error}. Name another file.") from error

    def write(self, line: dict[str, Any]) -> None:
        """Add a line to what waits for :meth:`flush`, unless it is there already."""
        if self._there and (key := _key(line)) in self._there:
            self._there.discard(key)
            self.n_there += 1
            return
        text = json.dumps(line, ensure_ascii=False, separators=(", ", ": "), allow_nan=False)
        self._waiting.append(text.encode("utf-8", "backslashreplace") + b"\n")
        self._n_waiting += len(self._waiting[-1])

    @property
    def is_full(self) -> bool:
        """True if it is time to flush."""
        return self._n_waiting > _FULL

    def flush(self) -> None:
        """Write what waits.

        Raises
        ------
        BrokenPipeError
            If nobody reads any more.
        SaveError
            If it cannot be written. In both cases what is left goes on waiting.
        """
        text, done = b"".join(self._waiting), 0
        try:
            while done < len(text):
                done += os.write(self._fd, memoryview(text)[done:])
        except BrokenPipeError:
            done = text.rfind(b"\n", 0, done) + 1  # whoever reads next gets whole lines
            raise
        except OSError as error:
            raise SaveError(f"the output cannot be written: {error}. Make room, and start again.") from error
        finally:
            self._waiting = [text[done:]] if done < len(text) else []
            self._n_waiting = len(text) - done

    def position(self) -> dict[str, Any]:
        """Say how far the file goes, once that is on the disk, and what waits; plain JSON."""
        size = 0
        if self.is_file:
            os.fsync(self._fd)
            size = os.fstat(self._fd).st_size
        waiting = b"".join(self._waiting).decode("latin-1")  # any byte, as a text that JSON can hold
        return {"size": size, "seam": self._seam(size), "waiting": waiting}

    def go_on(self, position: dict[str, Any]) -> str:
        """Find out what was written after a snapshot.

        Returns
        -------
        str
            What the user should know; empty if all is well.
        """
        if waiting := position["waiting"].encode("latin-1"):
            self._waiting, self._n_waiting = [waiting], len(waiting)
        size, seam = int(position["size"]), position["seam"]
        if not self.is_file:
            return "the output is no file: lines after the snapshot come again, with the same seq"
        if os.fstat(self._fd).st_size < size or (seam and self._seam(size) not in ("", seam)):
            return "the output is not the file of the snapshot: it gets all lines since then"
        tail = self._read(size, os.fstat(self._fd).st_size - size)
        if tail is None:
            return "the output cannot be read back: lines after the snapshot come again; write them with --out FILE"
        whole, newline, torn = tail.rpartition(b"\n")
        if torn:
            os.ftruncate(self._fd, size + len(whole) + len(newline))
        for text in whole.splitlines():
            try:
                self._there.add(_key(json.loads(text)))
            except (ValueError, KeyError, TypeError):
                continue  # a line of somebody else
        return ""

    def close(self) -> None:
        """Let it go, without what waits."""
        if self._fd > 2:
            os.close(self._fd)

    def _seam(self, size: int) -> str:
        before = self._read(max(0, size - _SEAM), min(size, _SEAM)) if self.is_file else None
        return "" if before is None else hashlib.sha256(before).hexdigest()

    def _read(self, offset: int, n: int) -> bytes | None:
        """Read back; None where the system does not let us (standard output is open for writing only)."""
        for path in (f"/proc/self/fd/{self._fd}", f"/dev/fd/{self._fd}"):
            try:
                with open(path, "rb") as file:
                    file.seek(offset)
                    return file.read(n)
            except OSError:
                continue
        try:
            os.lseek(self._fd, offset, os.SEEK_SET)
            return os.read(self._fd, n)
        except OSError:
            return None


def _key(line: dict[str, Any]) -> str:
    """What makes a line one of its own: rows by stream, number and time, alerts by their event too."""
    return json.dumps([line[name] for name in ("stream", "seq", "time")] + [line.get("id"), line.get("event")])
