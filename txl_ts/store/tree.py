"""What is in a bundle, and the tree of files that it becomes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.store import plain_json, tensors
from txl_ts.store.caps import (
    CONFIG_CAP,
    EPOCH_CAP,
    EPOCH_STEMS,
    FORMAT,
    MANIFEST_CAP,
    PARTS,
    POSITIONS_CAP,
    ROLES,
    TENSOR_CAP,
    VERSION,
    Expected,
    shown,
    some,
)
from txl_ts.store.zipped import Digest

Add = Callable[[str, int, Iterable[bytes | memoryview]], Digest]
_HINT = "Take another copy of the file, or save it again."
_FILE = re.compile(rf"(config|positions|{'|'.join(PARTS)})(?:-(0|[1-9][0-9]{{0,17}}))?\.(json|safetensors)", re.ASCII)
_MANIFEST = re.compile(r"manifest(?:-(0|[1-9][0-9]{0,17}))?\.json", re.ASCII)
_CURRENT = re.compile(rb"(manifest(?:-[0-9]{1,18})?\.json) ([0-9a-f]{64})\n")


@dataclass(frozen=True)
class Bundle:
    """What belongs together in one file: what it is, how it is built, its arrays, and where its sources stood.

    Parameters
    ----------
    role : {"model", "stream-state", "checkpoint", "adapter"}
        What the file is for.
    config : dict
        Plain JSON: the class by registry name, its parameters, the schema. Tuples come back as lists.
    tensors : dict of part to dict of name to array
        Parts among ``"weights"``, ``"scalers"`` (floats in float64), ``"state"`` and ``"optimiser"``.
    positions : dict
        Plain JSON: the source positions that belong to exactly this state; ``{}`` if there are none.
    """

    role: str
    config: dict[str, Any]
    tensors: dict[str, dict[str, tensors.Array]]
    positions: dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """The list of a tree's files, and what they are for."""

    role: str
    epoch: int
    files: dict[str, tuple[str, int, str]]
    """Stem ("config", "weights", …) -> (file name, bytes, sha256)."""


@dataclass(frozen=True)
class Prepared:
    """A bundle that is known to be loadable again; nothing about it can fail any more but the disk."""

    role: str
    files: list[tuple[str, str, tensors.Encoded]]
    """(stem, suffix, content)."""

    def write(self, add: Add, *, epoch: int, is_numbered: bool) -> bytes:
        """Write all files but ``CURRENT``, whose content is returned.

        With ``is_numbered``, every name carries the epoch, so that epochs can live side by side.
        """
        files = {}
        for stem, suffix, content in self.files:
            name = f"{stem}-{epoch}{suffix}" if is_numbered or stem in EPOCH_STEMS else f"{stem}{suffix}"
            digest = add(name, content.size, content.chunks())
            files[name] = {"bytes": digest.size, "sha256": digest.sha256}
        manifest = {"format": FORMAT, "version": VERSION, "role": self.role, "epoch": epoch, "files": files}
        text = plain_json.encode(manifest, what="the manifest", cap=MANIFEST_CAP)
        name = f"manifest-{epoch}.json" if is_numbered else "manifest.json"
        return f"{name} {add(name, len(text), [text]).sha256}\n".encode("ascii")


def prepare(bundle: Bundle) -> Prepared:
    """Check a bundle whole before a disk is touched.

    Raises
    ------
    ParameterError
        If the file would not load again.
    """
    if bundle.role not in ROLES:
        raise ParameterError(f"role is {shown(bundle.role)}, expected one of {some(ROLES)}.")
    if unknown := sorted(set(bundle.tensors) - set(PARTS), key=str):
        raise ParameterError(f"tensors has the parts {some(unknown)}, expected parts among {some(PARTS)}.")
    if (n := sum(map(len, bundle.tensors.values()))) > TENSOR_CAP:
        raise ParameterError(
            f"tensors holds {n} arrays, at most {TENSOR_CAP} can be read back. Stack lanes into one array."
        )
    config = plain_json.encode(bundle.config, what="config", cap=CONFIG_CAP)
    positions = plain_json.encode(bundle.positions, what="positions", cap=POSITIONS_CAP)
    files = [
        (stem, ".json", tensors.Encoded(len(text), text, []))
        for stem, text in [("config", config), ("positions", positions)]
    ]
    parts = [part for part in PARTS if part in bundle.tensors]
    files += [(part, ".safetensors", tensors.encode(part, bundle.tensors[part])) for part in parts]
    return Prepared(bundle.role, files)


def table_of(arrays: dict[str, dict[str, tensors.Array]]) -> Expected:
    """Give the table of names, shapes and dtypes of arrays, as ``load`` expects it."""
    return {part: tensors.table_of(named) for part, named in arrays.items()}


def split_current(data: bytes, where: str) -> tuple[str, str]:
    """Read ``CURRENT``: the name of the manifest and its sha256."""
    match = _CURRENT.fullmatch(data)
    if match is None or _MANIFEST.fullmatch(match[1].decode()) is None:
        raise FileFormatError(f"{where}: CURRENT is damaged, it says {shown(data)}. {_HINT}")
    return match[1].decode(), match[2].decode()


def epoch_of(name: str) -> int | None:
    """Give the epoch in the name of one of our files; None for any other name."""
    match = _MANIFEST.fullmatch(name)
    if match is not None:
        return None if match[1] is None else int(match[1])
    match = _FILE.fullmatch(name)
    return None if match is None or match[2] is None else int(match[2])


def read_manifest(data: bytes, name: str, where: str) -> Manifest:
    """Read a manifest whose sha256 was compared.

    Raises
    ------
    FileFormatError
        If it is of another format or major version, or lists anything but our files.
    """
    content = plain_json.decode(data, where=f"{where}: {name}")
    if content.get("format") != FORMAT:
        raise FileFormatError(
            f"{where}: the manifest names the format {shown(content.get('format'))}, expected {FORMAT!r}. {_HINT}"
        )
    minor = _minor(content.get("version"), where)
    required = {"format", "version", "role", "epoch", "files"}
    if not content.keys() >= required or (minor == 0 and content.keys() != required):
        raise FileFormatError(
            f"{where}: the manifest has the keys {some(sorted(content))}, expected {some(sorted(required))}. {_HINT}"
        )
    role, epoch, files = content["role"], content["epoch"], content["files"]
    if role not in ROLES:
        raise FileFormatError(
            f"{where}: the manifest names the role {shown(role)}, expected one of {some(ROLES)}. {_HINT}"
        )
    if type(epoch) is not int or not 0 <= epoch <= EPOCH_CAP or epoch_of(name) not in (None, epoch):
        raise FileFormatError(f"{where}: {name} claims the epoch {shown(epoch)}. {_HINT}")
    if not isinstance(files, dict):
        raise FileFormatError(f"{where}: the manifest's files are {shown(files)}, expected an object. {_HINT}")
    by_stem: dict[str, tuple[str, int, str]] = {}
    for file, claim in files.items():
        stem = _stem(file, epoch, where)
        if stem in by_stem:
            raise FileFormatError(
                f"{where}: the manifest lists two files for {stem}: {some([by_stem[stem][0], file])}. {_HINT}"
            )
        by_stem[stem] = (file, *_claim(file, claim, where))
    if missing := sorted({"config", "positions"} - by_stem.keys()):
        raise FileFormatError(f"{where}: the manifest lists no file for {some(missing)}. {_HINT}")
    return Manifest(role, epoch, by_stem)


def _minor(version: object, where: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", version, re.ASCII) if isinstance(version, str) else None
    if match is None:
        raise FileFormatError(
            f"{where}: the manifest names the version {shown(version)}, expected one such as {VERSION!r}. {_HINT}"
        )
    if match[1] != VERSION.split(".")[0]:
        raise FileFormatError(
            f"{where} has format version {match[0]}; this txl-ts reads {VERSION.split('.')[0]}.x. "
            f"Load it with the txl-ts that wrote it, or `pip install --upgrade txl-ts`."
        )
    return int(match[2])


def _stem(file: str, epoch: int, where: str) -> str:
    match = _FILE.fullmatch(file)
    if match is None or (match[3] == "json") != (match[1] in ("config", "positions")):
        raise FileFormatError(f"{where}: the manifest lists {shown(file)}, which is no file of this format. {_HINT}")
    if match[2] is not None and int(match[2]) != epoch:
        raise FileFormatError(f"{where}: the manifest of epoch {epoch} lists {shown(file)} of another epoch. {_HINT}")
    return match[1]


def _claim(file: str, claim: object, where: str) -> tuple[int, str]:
    if isinstance(claim, dict) and claim.keys() == {"bytes", "sha256"}:
        size, sha256 = claim["bytes"], claim["sha256"]
        if (
            type(size) is int
            and 0 <= size < 2**63
            and isinstance(sha256, str)
            and re.fullmatch(r"[0-9a-f]{64}", sha256)
        ):
            return size, sha256
    raise FileFormatError(f"{where}: the manifest says {shown(claim)} of {file}, expected bytes and sha256. {_HINT}")
