"""The model as one stateful ONNX graph, with its contract."""

from txl_ts.export.onnx import export_onnx

__all__ = ["export_onnx"]
