"""The model as one stateful ONNX graph, with its contract."""

from txl_ts.export.onnx import contract_of, export_onnx, load_proto
from txl_ts.export.precision import LARGEST_ERROR
from txl_ts.runtime.contract import CONTRACT_KEY
from txl_ts.runtime.opening import STEP_SUFFIX

__all__ = ["CONTRACT_KEY", "LARGEST_ERROR", "STEP_SUFFIX", "contract_of", "export_onnx", "load_proto"]
