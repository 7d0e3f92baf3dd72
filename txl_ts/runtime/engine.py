"""ONNX Runtime behind one call: one quiet thread, the device that was asked for, checked against the contract."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from txl_ts.errors import FileFormatError, MissingExtraError, ParameterError
from txl_ts.runtime.contract import CONTRACT_KEY, SAID, Contract, read_contract
from txl_ts.runtime.warned import warn

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
_SHORT = {"cpu": _CPU, "cuda": _CUDA}
_TYPES = {"float32": "tensor(float)", "int32": "tensor(int32)"}
_ONE_WHEEL = (
    "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu  (or onnxruntime, without a GPU)"
)


class Steps(Protocol):
    """What a session drives: a contract, and arrays in, arrays out."""

    contract: Contract

    def run(self, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Give ``y`` and the state tensors, in the contract's order, for ``x``, ``start`` and the state.

        Of a detector, ``y`` holds the scores too: they stand where a further step would, see :func:`joined`.
        """
        ...


def bound(steps: Steps, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
    """Give a call that reads and writes these arrays, however often it is made.

    An output may be the array of an input only where the contract's ``in_place`` says so.
    """
    if isinstance(steps, Engine):
        return steps.bind(inputs, outputs)
    names = ("y", *steps.contract.outputs)

    def call() -> None:
        for name, array in zip(names, steps.run(inputs), strict=True):
            outputs[name][...] = array

    return call


def joined(
    answer: NDArray[np.float32], score: NDArray[np.float32], parts: NDArray[np.float32], p_value: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Put what a detector says of rows behind their forecasts, as a further step of ``answer`` (B, T, h + 1, C, Q)."""
    said = answer[:, :, -1]
    said[..., 0], said[..., 1], said[..., 2] = parts, score[..., None], p_value[..., None]
    said[..., 3:] = 0
    return answer


class Engine:
    """One loaded graph: arrays in, arrays out, nothing kept.

    Parameters
    ----------
    data : bytes
        The graph.
    where : str
        Its name for messages.
    providers : str or sequence of str
        ``"auto"``, ``"cpu"``, ``"cuda"``, or names of ONNX Runtime.
    threads : int
        Threads of one call.
    cuda_graph : bool
        Record the calls of each bound set of buffers as a CUDA graph.
    """

    def __init__(
        self, data: bytes, *, where: str, providers: str | Sequence[str], threads: int, cuda_graph: bool = False
    ) -> None:
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
            raise ParameterError(f"threads={threads!r} must be an integer of 1 or more. Streams need one.")
        runtime = _onnxruntime()
        _warn_of_two_wheels()
        asked, is_strict = _chosen(runtime, providers)
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "0"
        )  # a 20 Hz stream: 38 % of a core with it
        options.log_severity_level = 3
        if cuda_graph and _CUDA not in asked:
            raise ParameterError(
                f"cuda_graph=True needs {_CUDA}, but the providers are {asked}. Give providers='cuda', or leave it out."
            )
        entries = [(name, {"enable_cuda_graph": "1"}) if cuda_graph and name == _CUDA else name for name in asked]
        try:
            self._session = runtime.InferenceSession(data, options, providers=entries)
        except Exception as error:
            raise FileFormatError(
                f"{where} is not a graph that ONNX Runtime {runtime.__version__} can load: {error}. "
                "Pass what `export_onnx` wrote, or upgrade onnxruntime."
            ) from error
        active = self._session.get_providers()
        if is_strict and asked[0] not in active:
            raise _inactive(asked[0], active)
        self.contract = read_contract(self._session.get_modelmeta().custom_metadata_map.get(CONTRACT_KEY), where=where)
        _check_tensors(self._session, self.contract, where)
        self._outputs = [*(SAID if self.contract.is_detector else ("y",)), *self.contract.outputs]
        self.device = "cuda" if active[0] == _CUDA else "cpu"
        self._runtime, self._has_graphs, self._n_bound = runtime, cuda_graph, 0

    def run(self, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Give ``y`` and the state tensors, in the contract's order."""
        if self.contract.is_detector:
            feed = {**feed, "status": np.zeros(feed["x"].shape, np.int32)}
        arrays: list[NDArray[Any]] = self._session.run(self._outputs, dict(feed), self._run_options(-1))
        if self.contract.is_detector:
            y, *said = arrays[: len(SAID)]
            out = np.empty((*y.shape[:2], *self.contract.answer_shape), np.float32)
            out[:, :, :-1] = y
            return [joined(out, *said), *arrays[len(SAID) :]]
        return arrays

    def bind(self, inputs: Mapping[str, NDArray[Any]], outputs: Mapping[str, NDArray[Any]]) -> Callable[[], None]:
        """Give a call that reads and writes these arrays of the host; see :func:`bound`."""
        binding, whole = self._session.io_binding(), outputs["y"]
        inputs, outputs = dict(inputs), dict(outputs)
        if self.contract.is_detector:
            inputs["status"] = np.zeros(inputs["x"].shape, np.int32)
            outputs |= {
                name: np.zeros(tuple(n or m for n, m in zip(shape, whole.shape, strict=False)), np.float32)
                for name, (_, shape) in self.contract.tensors().items()
                if name in SAID
            }
        for name, array in inputs.items():
            binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        for name, array in outputs.items():
            binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        options = self._run_options(-1)
        said = [outputs[name] for name in SAID] if self.contract.is_detector else []

        def call() -> None:
            self._session.run_with_iobinding(binding, options)
            assert inputs, "the binding holds addresses alone"
            assert outputs
            if said:
                whole[:, :, :-1] = said[0]
                joined(whole, *said[1:])

        return call

    def on_device(self, array: NDArray[Any]) -> Any:
        """Copy an array into a buffer of the device that runs the graph."""
        return self._runtime.OrtValue.ortvalue_from_numpy(np.array(array), self.device, 0)

    def bind_device(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Callable[[], None]:
        """Give a call that reads and writes these buffers of the device, which stay there."""
        binding = self._session.io_binding()
        for name, value in inputs.items():
            binding.bind_ortvalue_input(name, value)
        for name, value in outputs.items():
            binding.bind_ortvalue_output(name, value)
        self._n_bound += 1
        options, kept = self._run_options(self._n_bound), (dict(inputs), dict(outputs))

        def call() -> None:
            binding.synchronize_inputs()
            self._session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()
            assert kept

        return call

    def _run_options(self, graph: int) -> Any:
        """Each set of addresses needs a CUDA graph of its own; −1 records none."""
        if not self._has_graphs:
            return None
        options = self._runtime.RunOptions()
        options.add_run_config_entry("gpu_graph_id", str(graph))
        return options


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            'onnxruntime is needed to run a graph. Install it with `pip install "txl-ts[ort]"`.'
        ) from error
    if not hasattr(onnxruntime, "InferenceSession"):
        raise MissingExtraError(f"onnxruntime is installed but empty: one of its two wheels was removed. {_ONE_WHEEL}")
    return onnxruntime


def _warn_of_two_wheels() -> None:
    """Both wheels own the same module: the last one installed wins, and pip says nothing."""
    try:
        both = version("onnxruntime"), version("onnxruntime-gpu")
    except PackageNotFoundError:
        return
    warn(
        f"onnxruntime {both[0]} and onnxruntime-gpu {both[1]} are both installed and overwrite each other. "
        f"Keep one: {_ONE_WHEEL}",
    )


def _chosen(runtime: Any, providers: str | Sequence[str]) -> tuple[list[str], bool]:
    """Give the providers to ask for, and whether the first of them must become active."""
    available = runtime.get_available_providers()
    if providers == "auto":
        return [name for name in (_CUDA, _CPU) if name in available], False
    names = [providers] if isinstance(providers, str) else providers
    asked = [_SHORT.get(name, name) if isinstance(name, str) else name for name in names]
    if not asked or (unknown := [name for name in asked if name not in available and name != _CUDA]):
        raise ParameterError(
            f"providers={providers!r} {'is empty' if not asked else f'names {unknown}'}, "
            f"expected 'auto', 'cpu', 'cuda' or some of {available}."
        )
    if _CUDA in asked and _CUDA not in available:
        raise _inactive(_CUDA, available)
    return asked, True


def _inactive(asked: str, active: Sequence[str]) -> MissingExtraError:
    cure = "Give providers='auto' to run on what is there."
    if asked == _CUDA:
        cure = (
            'Install `pip install "txl-ts[ort-gpu]"` (onnxruntime-gpu[cuda,cudnn], and no plain onnxruntime beside it) '
            f"and call `onnxruntime.preload_dlls()` first. {cure}"
        )
    return MissingExtraError(f"{asked} was asked for, but ONNX Runtime offers only {list(active)}. {cure}")


def _check_tensors(session: Any, contract: Contract, where: str) -> None:
    """Compare the graph with its contract: ONNX Runtime would broadcast what does not fit."""
    found = {entry.name: entry for entry in (*session.get_inputs(), *session.get_outputs())}
    expected = contract.tensors()
    if set(found) != set(expected):
        raise FileFormatError(
            f"{where}: the graph has the tensors {sorted(found)}, its contract says {sorted(expected)}. "
            "Export the model again with `export_onnx`."
        )
    for name, (dtype, shape) in expected.items():
        entry = found[name]
        is_other = len(entry.shape) != len(shape) or any(
            isinstance(there, int) and there != here for there, here in zip(entry.shape, shape, strict=True)
        )
        if entry.type != _TYPES[dtype] or is_other:
            raise FileFormatError(
                f"{where}: the graph's {name!r} is {entry.type} of shape {entry.shape}, its contract says {dtype} of "
                f"shape {[n or 'any' for n in shape]}. Export the model again with `export_onnx`."
            )
