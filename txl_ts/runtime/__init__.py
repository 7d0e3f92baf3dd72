"""Run an exported graph on streams that never stop: numpy and ONNX Runtime, no torch and no data frames."""

from txl_ts.runtime.contract import Contract, read_contract
from txl_ts.runtime.opening import fleet_of
from txl_ts.runtime.result import StepColumns, StepResult
from txl_ts.runtime.session import StreamSession

__all__ = ["Contract", "StepColumns", "StepResult", "StreamSession", "fleet_of", "read_contract"]
