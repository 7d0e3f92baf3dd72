"""Save a bundle: into one file that replaces the old one, or as the next epoch of a directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from txl_ts.errors import FileFormatError, SaveError
from txl_ts.store import atomic
from txl_ts.store.caps import CURRENT, EPOCH_CAP, MANIFEST_CAP
from txl_ts.store.folder import FolderTree
from txl_ts.store.tree import Bundle, Prepared, epoch_of, prepare, read_manifest, split_current
from txl_ts.store.zipped import Digest, ZipWriter, pour

StrPath = str | os.PathLike[str]


def save(path: StrPath, bundle: Bundle) -> None:
    """Save a bundle as one file, all of it or nothing.

    When this returns, the file is on the disk. Until then, ``path`` is what it was. The same content gives the same
    bytes. Arrays are written piece by piece; no second copy is held. Of two writers, the last one stays.

    Parameters
    ----------
    path : str or path-like
        The file, ``.txl`` by habit. A link there is replaced, not followed.
    bundle : Bundle
        The content; it is not changed.

    Raises
    ------
    ParameterError
        If the file would not load again; nothing was touched.
    SaveError
        If it could not be written; what was there is intact, and the new file's beginnings are removed.
    """
    where = os.fspath(path)
    prepared = prepare(bundle)
    with _failing_as_save_error(where), atomic.replacing(where) as file:
        writer = ZipWriter(file)
        current = prepared.write(writer.add, epoch=0, is_numbered=False)
        writer.add(CURRENT, len(current), [current])
        writer.finish()


def save_epoch(path: StrPath, bundle: Bundle) -> int:
    """Save a bundle as the next epoch of a directory; the epoch before is kept, older ones are removed.

    When this returns, the epoch is on the disk and ``load`` reads it. A process killed at any moment leaves this epoch
    or the one before. Writers of one directory take turns.

    Parameters
    ----------
    path : str or path-like
        The directory; made if it is not there, its parent must be. Files with names of their own stay untouched.
    bundle : Bundle
        The content; it is not changed.

    Returns
    -------
    int
        The epoch: one more than the live one, 0 in a new directory.

    Raises
    ------
    ParameterError
        If the epoch would not load again; nothing was touched.
    SaveError
        If it could not be written, or another writer keeps the directory for a minute; the live epoch is intact.
    """
    where = os.fspath(path)
    prepared = prepare(bundle)
    with _failing_as_save_error(where):
        with suppress(FileExistsError):
            os.mkdir(where)
            atomic.fsync_folder(os.path.dirname(os.path.abspath(where)))
        with atomic.turn(where):
            live = _live_epoch(where)
            if live is not None:
                _remove(where, lambda other: other > live)  # litter of the dead
            epoch = _largest_epoch(where) + 1 if live is None else live + 1
            if epoch > EPOCH_CAP:
                raise SaveError(
                    f"{where} holds a file of epoch {epoch - 1}, the last there can be. Save into a new folder."
                )
            _publish(where, prepared, epoch)
            if live is not None:
                _remove(where, lambda other: other not in (live, epoch))
            return epoch


def _publish(folder: str, prepared: Prepared, epoch: int) -> None:
    def add(name: str, size: int, chunks: Iterable[bytes | memoryview]) -> Digest:
        with atomic.create(os.path.join(folder, name)) as file:
            digest = pour(chunks, file)
            file.flush()
            os.fsync(file.fileno())
        assert digest.size == size, (name, digest.size, size)
        return digest

    current = b""
    try:
        current = prepared.write(add, epoch=epoch, is_numbered=True)
        atomic.fsync_folder(folder)
        with atomic.replacing(os.path.join(folder, CURRENT)) as file:
            file.write(current)
    except BaseException:
        if not _is_live(folder, current):  # a failure after the replacement leaves a live epoch
            _remove(folder, lambda other: other == epoch)
        raise


def _is_live(folder: str, current: bytes) -> bool:
    try:
        return FolderTree(folder, folder).current() == current
    except FileFormatError:
        return False
    except OSError:
        return True  # not known: remove nothing


def _live_epoch(folder: str) -> int | None:
    """Give the published epoch; None if there is none, or none that can be read: then nothing may be removed."""
    tree = FolderTree(folder, folder)
    try:
        name, _ = split_current(tree.current(), folder)
        return read_manifest(tree.read(name, cap=MANIFEST_CAP).tobytes(), name, folder).epoch
    except FileFormatError:
        return None


def _largest_epoch(folder: str) -> int:
    return max((epoch for epoch in map(epoch_of, os.listdir(folder)) if epoch is not None), default=-1)


def _remove(folder: str, is_old: Callable[[int], bool]) -> None:
    """Remove the files of old epochs; what cannot be removed is left for the next save and fails nothing."""
    with suppress(OSError):
        for name in os.listdir(folder):
            epoch = epoch_of(name)
            if epoch is not None and is_old(epoch):
                with suppress(OSError):
                    os.unlink(os.path.join(folder, name))


@contextmanager
def _failing_as_save_error(where: str) -> Iterator[None]:
    try:
        yield
    except SaveError:
        raise
    except OSError as error:
        kind = "is a directory: use `save_epoch`" if isinstance(error, IsADirectoryError) else ""
        kind = kind or ("is a file: use `save`" if isinstance(error, NotADirectoryError) else "")
        advice = f"{where} {kind}." if kind else "Make room or another folder, and save again."
        failed = SaveError(f"could not save {where}: {error}. What was saved before is intact. {advice}")
        failed.errno = error.errno
        raise failed from error
