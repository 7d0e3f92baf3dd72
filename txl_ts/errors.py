"""Everything that txl-ts raises or warns with, on one screen.

Each error is also the built-in one that a caller would catch. Every message says what was wrong, what was got, and ends
with the call or the setting that works.
"""


class TxlError(Exception):
    """Base of all errors of txl-ts."""


class ParameterError(TxlError, ValueError):
    """An argument or hyper-parameter has a value that cannot work."""


class ShapeError(TxlError, ValueError):
    """An array has another shape than the one that is needed."""


class FrameError(TxlError, ValueError):
    """A data frame cannot be used as it is."""


class ColumnError(FrameError):
    """A column is missing, has the wrong type, or holds values that cannot be used."""


class FrequencyError(FrameError):
    """The frequency is unknown, cannot be inferred, or differs between series."""


class StampError(FrameError):
    """Time stamps repeat, mix zones, lie off the grid, or come before rows that were already taken in."""


class StateError(TxlError, ValueError):
    """A state belongs to another model, or names a lane or a series that is not there."""


class FileFormatError(TxlError, ValueError):
    """A file is torn, crafted, of another role, or of an unknown major version. Nothing of it was used."""


class SaveError(TxlError, OSError):
    """A file could not be written. What was saved before is intact."""


class TrainingError(TxlError, RuntimeError):
    """Training cannot start from these rows, or left the finite numbers."""


class ExportError(TxlError, RuntimeError):
    """An exported graph is not what its contract says; nothing was written."""


class MissingExtraError(TxlError, ImportError):
    """An optional package is needed; the message names the install command."""


class TxlWarning(UserWarning):
    """Base of all warnings of txl-ts."""


class UnusedColumnsWarning(TxlWarning):
    """Columns without a role were not used."""


class UnusedArgumentWarning(TxlWarning):
    """An argument that another library knows has no counterpart here."""


class ShortSeriesWarning(TxlWarning):
    """Series are too short for what was asked and fall back to something simpler."""


class CleanedDataWarning(TxlWarning):
    """Rows were moved, merged or skipped while a frame was read, or cutoffs lie in gaps and are left out."""


class DependentRowsWarning(TxlWarning):
    """Calibration rows resemble their neighbours so much that a budget of alarms may be missed by far."""


class TailWarning(TxlWarning):
    """An alarm level lies beyond the calibration scores: it comes from a fitted tail."""


class RowOrderWarning(TxlWarning):
    """Rows may be out of order, or belong to several series that nobody told apart."""
