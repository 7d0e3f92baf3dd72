"""Load a bundle from a zip or a directory: claims first, then hashes, then content, each against a limit."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.store import plain_json, tensors
from txl_ts.store.caps import (
    CONFIG_CAP,
    CURRENT,
    HEADER_CAP,
    MANIFEST_CAP,
    POSITIONS_CAP,
    ROLES,
    TENSOR_CAP,
    Expected,
    some,
)
from txl_ts.store.folder import FolderTree, open_regular
from txl_ts.store.tree import Bundle, Manifest, read_manifest, split_current
from txl_ts.store.zipped import ZipTree

StrPath = str | os.PathLike[str]
Describe = Callable[[dict[str, Any], dict[str, Any]], Expected]
_T = TypeVar("_T")
_HINT = "Take another copy of the file, or save it again."
_OVERTAKEN_CAP = 20


class _Tree(Protocol):
    is_closed_set: bool

    def names(self) -> set[str]: ...
    def size(self, name: str) -> int: ...
    def read(self, name: str, *, cap: int) -> NDArray[np.uint8]: ...
    def current(self) -> bytes: ...


def load(path: StrPath, *, role: str | tuple[str, ...], expected: Describe) -> Bundle:
    """Load a bundle, or fail with one error and nothing done.

    Whether ``path`` is a zip or a directory is seen from its content. The arrays of a part are writable, share one
    block of memory, and are freed together.

    Parameters
    ----------
    path : str or path-like
        What ``save`` or ``save_epoch`` wrote.
    role : str or tuple of str
        The roles that will do.
    expected : callable (config, positions) -> Expected
        Builds the table of all tensors, part -> name -> (shape, dtype), from the config and the positions, before any
        tensor is read. It bounds the memory that loading takes, so it should bound the sizes in a stranger's config.

    Raises
    ------
    FileFormatError
        If the file is torn, damaged, crafted, of another role or of an unknown major version, or if its tensors are not
        exactly those of the table. An exception of ``expected`` is chained: the config is then not one of ours.
    ParameterError
        If ``role`` is no role.
    FileNotFoundError
        If there is nothing at ``path``.
    """
    roles = (role,) if isinstance(role, str) else tuple(role)
    if not roles or (unknown := [name for name in roles if name not in ROLES]):
        raise ParameterError(f"role is {some(roles if not roles else unknown)}, expected one of {some(ROLES)}.")
    return _with_tree(path, lambda tree, where: _load(tree, where, roles, expected))


def peek(path: StrPath) -> tuple[str, dict[str, Any]]:
    """Read only what a file is: its role and its config, under the same limits as ``load``.

    Raises
    ------
    FileFormatError, FileNotFoundError
        As ``load``; the tensors are not looked at.
    """
    return _with_tree(path, _peek)


def _peek(tree: _Tree, where: str) -> tuple[str, dict[str, Any]]:
    manifest = _manifest(tree, where)
    return manifest.role, _json(tree, manifest, "config", CONFIG_CAP, where)


def _load(tree: _Tree, where: str, roles: tuple[str, ...], expected: Describe) -> Bundle:
    manifest = _manifest(tree, where)
    if manifest.role not in roles:
        raise FileFormatError(
            f"{where} is a {manifest.role}, expected a {' or '.join(roles)}. Pass the file that holds one."
        )
    config = _json(tree, manifest, "config", CONFIG_CAP, where)
    positions = _json(tree, manifest, "positions", POSITIONS_CAP, where)
    table = _described(expected, config, positions, where)
    parts = [stem for stem in manifest.files if stem not in ("config", "positions")]
    lacking = [part for part, named in table.items() if named and part not in parts]
    surplus = [part for part in parts if part not in table and manifest.files[part][1] != tensors.EMPTY_BYTES]
    if lacking or surplus:
        what = f"lacks the parts {some(lacking)}" if lacking else f"holds the parts {some(surplus)}"
        raise FileFormatError(
            f"{where} {what}, expected {some(sorted(table)) or 'none'}. Pass the file that holds these."
        )
    arrays = {}
    for part in parts:
        named = table.get(part, {})
        data = _checked(tree, manifest, part, 8 + HEADER_CAP + tensors.expected_bytes(named), where)
        arrays[part] = tensors.decode(data, part=part, where=f"{where}: {manifest.files[part][0]}", expected=named)
    return Bundle(manifest.role, config, arrays, positions)


def _manifest(tree: _Tree, where: str) -> Manifest:
    name, sha256 = split_current(tree.current(), where)
    data = tree.read(name, cap=MANIFEST_CAP)
    _check_sha256(data, sha256, name, where)
    manifest = read_manifest(data.tobytes(), name, where)
    if tree.is_closed_set:
        listed = {file for file, _, _ in manifest.files.values()}
        if surplus := sorted(tree.names() - listed - {name, CURRENT}):
            raise FileFormatError(f"{where}: the files {some(surplus)} are not in the manifest. {_HINT}")
    return manifest


def _json(tree: _Tree, manifest: Manifest, stem: str, cap: int, where: str) -> dict[str, Any]:
    data = _checked(tree, manifest, stem, cap, where)
    return plain_json.decode(data.tobytes(), where=f"{where}: {manifest.files[stem][0]}")


def _checked(tree: _Tree, manifest: Manifest, stem: str, cap: int, where: str) -> NDArray[np.uint8]:
    """Read a file that has the size and the sha256 of the manifest."""
    name, size, sha256 = manifest.files[stem]
    if (got := tree.size(name)) != size:
        raise FileFormatError(f"{where}: {name} has {got} bytes, the manifest says {size}. {_HINT}")
    data = tree.read(name, cap=cap)
    _check_sha256(data, sha256, name, where)
    return data


def _check_sha256(data: NDArray[np.uint8], sha256: str, name: str, where: str) -> None:
    if (got := hashlib.sha256(data.data).hexdigest()) != sha256:
        raise FileFormatError(
            f"{where}: {name} is damaged, its sha256 is {got[:12]}…, expected {sha256[:12]}…. {_HINT}"
        )


def _described(expected: Describe, config: dict[str, Any], positions: dict[str, Any], where: str) -> Expected:
    """Ask for the table; whatever goes wrong there is the fault of a config that the caller cannot use."""
    try:
        table = {part: tensors.normalised(named) for part, named in expected(config, positions).items()}
    except FileFormatError:
        raise
    except Exception as error:
        raise FileFormatError(
            f"{where}: the config cannot be used: {type(error).__name__}: {error}. {_HINT}"
        ) from error
    if (n := sum(map(len, table.values()))) > TENSOR_CAP:
        raise FileFormatError(f"{where}: the config asks for {n} tensors, at most {TENSOR_CAP} are read. {_HINT}")
    return table


def _with_tree(path: StrPath, use: Callable[[_Tree, str], _T]) -> _T:
    where = os.fspath(path)
    if stat.S_ISDIR(os.stat(where).st_mode):
        return _with_folder(FolderTree(where, where), where, use)
    with open_regular(where, where, links=True) as file:
        magic = file.read(4)
        if magic != b"PK\3\4":
            raise FileFormatError(
                f"{where} is no txl-ts file: it begins with {magic!r}, expected a zip (b'PK\\x03\\x04') or a folder. "
                f"Pass what `save` or `save_epoch` wrote."
            )
        return use(ZipTree(file, where), where)


def _with_folder(tree: FolderTree, where: str, use: Callable[[_Tree, str], _T]) -> _T:
    """Start again when writers were faster: two epochs later, the files that were being read are gone."""
    for _ in range(_OVERTAKEN_CAP):
        seen = tree.current()
        try:
            return use(tree, where)
        except FileFormatError:
            if tree.current() == seen:
                raise
    raise FileFormatError(
        f"{where} was replaced {_OVERTAKEN_CAP} times while it was read. Save less often, or load a copy."
    )
