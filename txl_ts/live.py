"""The torch twin of the runtime's session: the same streams and protocol over the model itself, without a graph."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray

from txl_ts.embeddings import beside_of
from txl_ts.model import TXLModel
from txl_ts.runtime import StreamSession, fleet_of, read_contract


class LiveSession(StreamSession):
    """Named streams through a torch model; see :class:`~txl_ts.runtime.StreamSession` for all it does.

    Parameters
    ----------
    model : TXLModel
        In evaluation mode; not changed.
    contract : mapping
        What ``export_onnx`` would write beside the graph of this model.
    """

    is_live = True
    """A model is stepped, not a graph."""

    def __init__(self, model: TXLModel, contract: Mapping[str, Any]) -> None:
        self._begin(fleet_of(_TorchSteps(model, contract)))

    def _open(self, model: Any) -> Any:
        """Open what :meth:`swap` is given: a model and its contract."""
        return fleet_of(_TorchSteps(*model))


class _TorchSteps:
    def __init__(self, model: TXLModel, contract: Mapping[str, Any]) -> None:
        model.config.check_any_split("a session")
        self.contract = read_contract(json.dumps(contract), where="the contract")
        self._model = model

    def run(self, feed: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        names = [spec.name for spec in self.contract.specs]
        past = [torch.from_numpy(feed[name]) for name in self.contract.inputs]
        with torch.inference_mode():
            x = torch.from_numpy(feed["x"])
            beside = {name: torch.from_numpy(feed[name]) for name in self.contract.layout.parts}
            y, state = self._model(
                x,
                dict(zip(names, past, strict=True)),
                torch.from_numpy(feed["start"]),
                beside=beside_of(beside, x),
            )
        return [y.numpy(), *(state[name].numpy() for name in names)]
