"""The model as one stateful ONNX graph, with its contract."""

from txl_ts.export.onnx import CONTRACT_KEY, contract_of, export_onnx, load_proto
from txl_ts.export.precision import LARGEST_ERROR

__all__ = ["CONTRACT_KEY", "LARGEST_ERROR", "contract_of", "export_onnx", "load_proto"]
