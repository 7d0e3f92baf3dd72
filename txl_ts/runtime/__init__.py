"""Run an exported graph on streams that never stop: numpy and ONNX Runtime, no torch and no data frames."""

from txl_ts.runtime.contract import Contract, read_contract
from txl_ts.runtime.result import StepResult
from txl_ts.runtime.session import StreamSession

__all__ = ["Contract", "StepResult", "StreamSession", "read_contract"]
