"""Checkpoints: all that a run needs to go on, bit for bit, from any step."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from txl_ts.errors import FileFormatError, ParameterError
from txl_ts.store import Bundle, Expected, load, peek, save_epoch, table_of
from txl_ts.training.epochs import History
from txl_ts.training.loop import Trainer

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Checkpoint:
    """Writes a run to a folder as it goes, and takes up the run that is there.

    Parameters
    ----------
    path : path
        Folder; made when missing.
    identity : dict
        Plain JSON that tells this run from any other: sizes, settings, a digest of the rows. A folder with another
        identity is refused.
    every : int
        Steps between two writes; the end of an epoch is always written.
    """

    path: str | PathLike[str]
    identity: dict[str, Any]
    every: int = 1000
    _since: int = field(default=0, init=False)

    def resume(self, trainer: Trainer) -> bool:
        """Put a trainer where the folder's run stopped; False if there is none.

        Raises
        ------
        ParameterError
            If the folder holds the checkpoint of another run.
        FileFormatError
            If it is damaged.
        """
        if not os.path.isdir(self.path) or not os.listdir(self.path):
            return False
        self._refuse_another_run()
        bundle = load(self.path, role="checkpoint", expected=lambda config, at: self._expected(trainer, config, at))
        at, progress = bundle.positions, trainer.progress
        progress.history = History(at["train"], at["validation"], at["best_epoch"], at.get("hop_norms", []))
        trainer.hops.sums, trainer.hops.counts = at.get("hop_sums", []), at.get("hop_counts", [])
        progress.step, progress.loss_sum = at["step"], at["loss_sum"]
        weights = {name: torch.from_numpy(array) for name, array in bundle.tensors["weights"].items()}
        trainer.model.load_state_dict(_under("now", weights))
        progress.best = _under("best", weights)
        progress.lanes = _under("lanes", {n: torch.from_numpy(a) for n, a in bundle.tensors["state"].items()})
        for name, parameter in trainer.model.named_parameters():
            moments = {
                moment: torch.from_numpy(bundle.tensors["optimiser"][f"{name}.{moment}"])
                for moment in _MOMENTS
                if f"{name}.{moment}" in bundle.tensors["optimiser"]
            }
            if moments:
                trainer.optimiser.state[parameter] = moments
        torch.set_rng_state(torch.from_numpy(bundle.tensors["state"]["rng"]))
        return True

    def after_step(self, trainer: Trainer) -> None:
        """Count a step, and write when it is time."""
        self._since += 1
        if self._since >= self.every or trainer.progress.step == 0:
            self._since = 0
            save_epoch(self.path, self._bundle(trainer))

    def _bundle(self, trainer: Trainer) -> Bundle:
        progress, history = trainer.progress, trainer.progress.history
        now = {f"now.{name}": tensor.numpy() for name, tensor in trainer.model.state_dict().items()}
        best = {f"best.{name}": tensor.numpy() for name, tensor in progress.best.items()}
        lanes = {f"lanes.{name}": tensor.numpy() for name, tensor in progress.lanes.items()}
        optimiser = {
            f"{name}.{moment}": trainer.optimiser.state[parameter][moment].numpy()
            for name, parameter in trainer.model.named_parameters()
            for moment in _MOMENTS
            if parameter in trainer.optimiser.state
        }
        hops = {"hop_norms": history.hop_norms, "hop_sums": trainer.hops.sums, "hop_counts": trainer.hops.counts}
        return Bundle(
            role="checkpoint",
            config={"class": "Trainer", "identity": self.identity},
            tensors={
                "weights": now | best,
                "optimiser": optimiser,
                "state": lanes | {"rng": torch.get_rng_state().numpy()},
            },
            positions={
                "train": history.train,
                "validation": history.validation,
                "best_epoch": history.best_epoch,
                "step": progress.step,
                "loss_sum": progress.loss_sum,
                "n_best": len(best),
                "n_moments": len(optimiser),
                "n_lanes": len(lanes),
            }
            | (hops if trainer.settings.bptt_segments > 1 else {}),
        )

    def _refuse_another_run(self) -> None:
        _, config = peek(self.path)
        if config.get("class") != "Trainer":
            raise FileFormatError(f"{os.fspath(self.path)!r} is not a checkpoint of a training run.")
        if config.get("identity") != self.identity:
            raise ParameterError(
                f"the checkpoint in {os.fspath(self.path)!r} belongs to another run: "
                f"{_difference(config.get('identity'), self.identity)}. "
                "Give the same rows and parameters to go on with it, or another folder to start anew."
            )

    def _expected(self, trainer: Trainer, config: dict[str, Any], at: dict[str, Any]) -> Expected:
        """Build the table of tensors from the run at hand, never from the file."""
        weights = {name: tensor.numpy() for name, tensor in trainer.model.state_dict().items()}
        lanes = trainer.model.init_visits(trainer.n_lanes, n_phases=trainer.n_phases) if at["n_lanes"] else {}
        moments: dict[str, NDArray[Any]] = {}
        if at["n_moments"]:
            # Empty ones (of a linear path over no rows) get no gradient.
            trained = ((n, p) for n, p in trainer.model.named_parameters() if p.requires_grad and p.numel())
            for name, parameter in trained:
                like = parameter.detach().numpy()
                moments |= {f"{name}.exp_avg": like, f"{name}.exp_avg_sq": like}
                moments[f"{name}.step"] = np.zeros((), np.float32)
        state = {f"lanes.{name}": tensor.numpy() for name, tensor in lanes.items()}
        return table_of(
            {
                "weights": {f"now.{n}": a for n, a in weights.items()}
                | ({f"best.{n}": a for n, a in weights.items()} if at["n_best"] else {}),
                "optimiser": moments,
                "state": state | {"rng": torch.get_rng_state().numpy()},
            }
        )


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _difference(there: Any, here: dict[str, Any]) -> str:
    """Name what differs between two identities, at most five things."""
    old, new = _flat(there), _flat(here)
    told = [f"{name} was {old.get(name)!r} and is {new[name]!r}" for name in new if old.get(name) != new[name]]
    return ", ".join(told[:5])[:600] or "its keys"


def _flat(identity: Any) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in identity.items() if isinstance(identity, dict) else ():
        flat |= value if isinstance(value, dict) else {name: value}
    return flat
