"""What leaves an estimator: its memories, its graph, a repository for Triton, a session."""

from __future__ import annotations

from os import PathLike
from typing import Any

from txl_ts.errors import ExportError
from txl_ts.estimators import files
from txl_ts.estimators.bands import Calibration
from txl_ts.estimators.reading import ReadsFrames
from txl_ts.export import LARGEST_ERROR
from txl_ts.live import LiveSession


class Exports(ReadsFrames):
    """Part of :class:`TXLForecaster`: methods that let a model run elsewhere."""

    segment_len: int
    calibration_: Calibration | None

    def export_state(self, path: str | PathLike[str]) -> None:
        """Write the kept memories alone, for a stream session to restore.

        Raises
        ------
        NotFittedError, SaveError
        """
        self._check_fitted()
        files.export_state(path, self)

    def export_onnx(
        self,
        path: str | PathLike[str],
        *,
        precision: str = "float32",
        profile: str = "opset18",
        df: Any = None,
        max_error: float | None = LARGEST_ERROR,
    ) -> dict[str, Any]:
        """Write the model as one stateful ONNX graph, with its memories as inputs and outputs.

        Scaling, missing values, the linear path and the quantiles are inside the graph. What was written is run and
        compared with the model before it is kept. A precision with fewer bits makes the file smaller, not faster; its
        error is measured against the float32 graph and stands in the contract.

        Parameters
        ----------
        path : path
            Such as ``"demand.onnx"``; the contract goes beside it, as ``demand.contract.json``.
        precision : {"float32", "float16", "int8-weights", "int8-dynamic"}
            How the weights of the layers are kept. The last one takes one row of one series per call.
        profile : {"opset18", "opset23"}
            Version of ONNX's operators: ONNX Runtime 1.16 or newer runs the first, 1.23 or newer the second.
        df : frame, optional
            Rows to measure the error of the precision on, with the columns of ``fit``; without them rows are drawn.
        max_error : float or None
            Largest error of a precision that is accepted, in standard deviations of the target; None accepts any.

        Returns
        -------
        dict
            The contract: names, shapes, units, sizes, and the parity that was measured.

        Raises
        ------
        NotFittedError, ParameterError, FrameError, MissingExtraError, ExportError, SaveError
        """
        self._check_exportable()
        panel = None if df is None else self._read_more(df, continues=False)
        return files.export_graph(path, self, precision=precision, profile=profile, panel=panel, max_error=max_error)

    def export_triton(
        self,
        folder: str | PathLike[str],
        *,
        name: str = "forecaster",
        n_streams: int = 1024,
        n_lanes: int = 64,
        idle_min: float = 60.0,
    ) -> dict[str, Any]:
        """Write the graph into a model repository of Triton, which then keeps the memories of all streams.

        Parameters
        ----------
        folder : path
            The repository; made if it is not there. It gets ``<name>/config.pbtxt`` and ``<name>/1/model.onnx``.
        name : str
            Under which clients ask for the model.
        n_streams : int
            Streams that are alive at once; each costs ``state_nbytes`` of the contract, in the server.
        n_lanes : int
            Most streams in one call of the graph.
        idle_min : float
            Minutes without a row after which the server forgets a stream.

        Returns
        -------
        dict
            The contract, as :meth:`export_onnx` gives it.

        Raises
        ------
        NotFittedError, ParameterError, MissingExtraError, ExportError, SaveError
        """
        self._check_exportable()
        settings = {"name": name, "n_streams": n_streams, "n_lanes": n_lanes, "idle_min": idle_min}
        return files.export_repository(folder, self, **settings)

    def live(self) -> LiveSession:
        """Open a torch session with the protocol of ``StreamSession``, without exporting anything; it starts empty.

        ``live().restore(path)`` takes what :meth:`export_state` wrote.

        Raises
        ------
        NotFittedError
        """
        self._check_fitted()
        return files.live_session(self)

    def _check_exportable(self) -> None:
        self._check_fitted()
        if self.calibration_ is not None:
            raise ExportError(
                "calibrated bands are not part of the graph: it would give others than predict(). Set "
                "calibration_ = None to export the bands as they were trained."
            )
