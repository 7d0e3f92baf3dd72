"""Finished fits of a long bench: each is kept at once, and a second call with the same settings goes on from there.

A file of kept fits has one line of JSON per fit: what it is ``of`` (everything that determines it: task, model, seed,
sizes, training) and what was ``found``. A fit is found again only where all of that is the same, so runs of other
settings never mix; code is not among it: delete the file when a model has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any


class KeptFits:
    """Fits by what they are of.

    Parameters
    ----------
    folder : path or None
        Where the file lies; made with the first fit. None: nothing is kept beyond this object.
    name : str
        Of the bench: the file is ``<name>.fits.jsonl``.
    """

    def __init__(self, folder: str | PathLike[str] | None, name: str) -> None:
        self.path = None if folder is None else Path(folder) / f"{name}.fits.jsonl"
        self._found: dict[str, Any] = {}
        if self.path is not None and self.path.is_file():
            text = self.path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]
            if whole != text:  # a call was stopped while it wrote
                self.path.write_text(whole, encoding="utf-8")
            for line in whole.splitlines():
                fit = json.loads(line)
                self._found[_key(fit["of"])] = fit["found"]

    def find(self, of: Mapping[str, Any]) -> Any | None:
        """Give what was found, or None if there is no such fit."""
        return self._found.get(_key(of))

    def keep(self, of: Mapping[str, Any], found: Any) -> Any:
        """Keep a fit, and give it as a later call will find it: numbers with seven digits."""
        found = json.loads(json.dumps(_short(found), allow_nan=False))
        self._found[_key(of)] = found
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            line = json.dumps({"of": of, "found": found}, ensure_ascii=False, separators=(",", ":"))
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        return found


def _key(of: Mapping[str, Any]) -> str:
    return json.dumps(of, sort_keys=True)


def _short(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
