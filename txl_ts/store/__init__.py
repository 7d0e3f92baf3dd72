"""The file format of models, checkpoints and stream states, written so that a crash or a stranger can do no harm.

**One tree, two homes.** A saved bundle is a small tree of plain files: JSON and safetensors, never a pickle.

================================  ====================================================================================
``CURRENT``                       one line, the name of the live manifest and its sha256; always written last
``manifest.json``                 format, version, role, epoch, and the bytes and sha256 of every file below
``config.json``                   class by registry name, plain parameters, schema
``weights.safetensors``, …        one file per part (``weights``, ``scalers`` in float64, ``state``, ``optimiser``)
``positions-<epoch>.json``        the source positions that belong to exactly ``state-<epoch>.safetensors``
================================  ====================================================================================

``save`` puts the tree into one stored (uncompressed) zip that replaces the old file in one step. ``save_epoch`` keeps
it as a directory, epoch by epoch: a directory with files in it cannot be replaced in one step.

**Why a directory survives a kill at any moment.** There every file carries its epoch in its name, the manifest too
(``manifest-7.json``), and no file of a published epoch is ever written to again. An epoch is published by one act: the
replacement of ``CURRENT``. Before it, the new files are litter that nothing refers to; after it, they are complete and
on the disk, since each was fsynced first. One manifest replaced in place would not do: between its replacement and that
of ``CURRENT`` there would be a moment in which the two disagree. ``CURRENT`` holds the sha256 of the manifest, the
manifest those of the files, so a damaged byte anywhere is seen, and a damaged ``CURRENT`` cannot quietly name the older
epoch. The epoch before is kept for readers that opened it a moment ago; a reader that is overtaken twice starts again.
Writers of one directory take turns by a lock on the file ``LOCK``, which the system lets go when a process dies: what
lies there without being published is therefore litter of the dead, and the next writer sweeps it.

**Why the zip is checked byte by byte.** Its headers are rebuilt from what they claim and compared, so there is one
spelling of every file: nothing in front, between or behind, no second name for one entry, no claim beyond the file.
An archive packed by another tool is refused; unpack it and load the folder, which is the same tree.

Loading compares every tensor with a table that the caller builds from the config, before an array exists.

Examples
--------
>>> import os, tempfile
>>> import numpy as np
>>> from txl_ts.store import Bundle, load, save, table_of
>>> weights = {"weights": {"head.w": np.ones((2, 3), np.float32)}}
>>> path = os.path.join(tempfile.mkdtemp(), "demand.txl")
>>> save(path, Bundle("model", {"class": "TXLForecaster"}, weights, {}))
>>> back = load(path, role="model", expected=lambda config, positions: table_of(weights))
>>> back.tensors["weights"]["head.w"].shape
(2, 3)
"""

from txl_ts.store.caps import Expected
from txl_ts.store.read import load, peek
from txl_ts.store.tree import Bundle, table_of
from txl_ts.store.write import save, save_epoch

__all__ = ["Bundle", "Expected", "load", "peek", "save", "save_epoch", "table_of"]
