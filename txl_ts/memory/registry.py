"""Memory policies by name: those of this library, those that were registered, those of installed packages."""

from __future__ import annotations

import difflib
from dataclasses import replace
from importlib.metadata import entry_points
from typing import TypeVar

import torch

from txl_ts.config import ModelConfig, check_integer, check_number
from txl_ts.errors import ParameterError
from txl_ts.memory.compressive import Compressive
from txl_ts.memory.far import FarMemory, far_specs
from txl_ts.memory.gated import Gated
from txl_ts.memory.importance import Importance
from txl_ts.memory.linear import Linear
from txl_ts.memory.same_layer import SameLayer
from txl_ts.memory.sinks import Sinks
from txl_ts.memory.tokens import Tokens
from txl_ts.memory.two_rate import TwoRate
from txl_ts.state import state_nbytes

ENTRY_POINTS = "txl_ts.memory"

# "fifo" is the window alone, which every policy has.
_POLICIES: dict[str, type[FarMemory] | None] = {
    "fifo": None,
    "sinks": Sinks,
    "compressive": Compressive,
    "two_rate": TwoRate,
    "gated": Gated,
    "importance": Importance,
    "tokens": Tokens,
    "linear": Linear,
    "same_layer": SameLayer,
}
_Policy = TypeVar("_Policy", bound=type[FarMemory])
_Config = TypeVar("_Config", bound=ModelConfig)


def register(name: str, policy: _Policy) -> _Policy:
    """Make a policy known by a name, for this process.

    A package makes it known for every process that it is installed in by an entry point of the group
    ``txl_ts.memory``: ``[project.entry-points."txl_ts.memory"]``, ``mine = "my_package:MyPolicy"``.

    Parameters
    ----------
    name : str
    policy : subclass of FarMemory

    Raises
    ------
    ParameterError
        If the name is taken by another policy, or the class is no policy.
    """
    if not (isinstance(policy, type) and issubclass(policy, FarMemory)):
        raise ParameterError(f"policy={policy!r} must be a subclass of txl_ts.memory.FarMemory.")
    if _POLICIES.get(name, policy) is not policy or name == "fifo":
        raise ParameterError(f"name={name!r} is the memory policy {_POLICIES[name]}. Take another name.")
    _POLICIES[name] = policy
    return policy


def policies() -> tuple[str, ...]:
    """Names of all memory policies, those of installed packages last."""
    return (*_POLICIES, *sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(_POLICIES)))


def policy(name: str) -> type[FarMemory] | None:
    """Give the policy of a name; None is the window alone.

    Raises
    ------
    ParameterError
        If nobody registered it.
    """
    if name not in _POLICIES:
        for point in entry_points(group=ENTRY_POINTS):
            if point.name == name:
                register(name, point.load())
                break
        else:
            near = difflib.get_close_matches(str(name), policies(), n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ParameterError(f"memory={name!r} is not known. Choose one of {list(policies())}.{hint}")
    return _POLICIES[name]


def completed(config: _Config) -> _Config:
    """Give the sizes with every parameter of their memory policy filled in.

    Raises
    ------
    ParameterError
        If the policy is not known, a parameter is not its own or cannot work, or the policy needs a stride of 1.
    """
    found = policy(config.memory)
    defaults = {} if found is None else found.defaults
    if unknown := sorted(set(config.memory_params) - set(defaults)):
        raise ParameterError(
            f"memory_params={config.memory_params} has {unknown[:5]}, which memory={config.memory!r} does not know. "
            + (f"It knows {defaults}." if defaults else "It has none.")
        )
    params: dict[str, int | float] = {}
    for name, default in defaults.items():
        value = config.memory_params.get(name, default)
        if isinstance(default, int):
            params[name] = check_integer(f"memory_params[{name!r}]", value, at_least=1)
        else:
            params[name] = check_number(f"memory_params[{name!r}]", value, at_least=0, below=1, example=default)
    if found is None:
        return config
    if config.stride != 1 and found.has_state:
        raise ParameterError(
            f"stride={config.stride} does not go with memory={config.memory!r}: each phase would need a far memory of "
            "its own. Take stride=1 (patch_len may stay), or memory='fifo' or 'sinks'."
        )
    return replace(config, memory_params=params)


def far_memory(config: ModelConfig) -> FarMemory | None:
    """Make one layer's far memory, of sizes that were :func:`completed`; None for the window alone."""
    found = policy(config.memory)
    params = config.memory_params
    return None if found is None else found(d_model=config.d_model, n_heads=config.n_heads, **params)


def far_size(config: ModelConfig) -> tuple[int, int]:
    """Count the weights of all layers' far memories, and the bytes of one lane's state, without making any."""
    with torch.device("meta"):
        far = far_memory(completed(config))
    specs = far_specs(far, n_layers=config.n_layers, d_model=config.d_model)
    n_weights = 0 if far is None else sum(weight.numel() for weight in far.parameters())
    return n_weights * config.n_layers, state_nbytes(specs)
