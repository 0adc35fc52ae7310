"""What a stopped training goes on from: weights, the optimiser's moments, and how many steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nope_interp.errors import UserError, shown
from nope_interp.models.checkpoints import load_tensors, load_weights, save_tensors

_MODEL = "model/"
_OPTIMIZER = "optimizer/"


@dataclass(frozen=True)
class TrainingState:
    """The state of one training, and the file that keeps it.

    Attributes:
        path: the file.
        header: which training it is; another one's state is refused.
        weights: what is trained, by name; restored in place.
        optimizer: AdamW over all of them.
    """

    path: Path
    header: dict[str, Any]
    weights: Mapping[str, Tensor]
    optimizer: torch.optim.Optimizer

    def save(self) -> None:
        """Keep the state, if there is a whole one: none before the first step, nor within one.

        The optimiser counts the steps for each weight, so it tells itself what is whole.
        """
        steps = {int(moments["step"]) for moments in self.optimizer.state.values()}
        if len(steps) == 1:
            save_tensors(self.path, self._tensors(), {**self.header, "step": steps.pop()})

    def restore(self) -> int:
        """Load what the file keeps, if there is one.

        Returns:
            The optimiser steps that were done; 0 where there is no file.

        Raises:
            UserError: where the file is damaged, or is the state of another training.
        """
        if not self.path.exists():
            return 0
        tensors, header, step = _read(self.path)
        if header != self.header or step > self.header["training"]["steps"]:
            raise UserError(
                f"{str(self.path)!r} is the state of another training: delete it or choose "
                "another folder."
            )
        kept = {name: tensor for name, tensor in tensors.items() if name.startswith(_OPTIMIZER)}
        counts = {float(kept[name]) for name in kept if name.endswith("/step")}
        if {name: tuple(kept[name].shape) for name in kept} != self._moments() or counts != {step}:
            raise UserError(
                f"{str(self.path)!r} does not fit its own training: delete it, and it begins again."
            )
        weights = {n.removeprefix(_MODEL): tensors[n] for n in tensors if n.startswith(_MODEL)}
        load_weights(self.weights, weights, self.path)
        moments: dict[int, dict[str, Tensor]] = {}
        for key, tensor in kept.items():
            _, index, name = key.split("/")
            moments.setdefault(int(index), {})[name] = tensor
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": moments})
        return step

    def _tensors(self) -> dict[str, Tensor]:
        """Weights and moments as one flat dictionary; moments by the optimiser's index."""
        tensors = {f"{_MODEL}{name}": value for name, value in self.weights.items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"{_OPTIMIZER}{index}/{name}": value for name, value in moments.items()}
        return tensors

    def _moments(self) -> dict[str, tuple[int, ...]]:
        """The shapes of AdamW's moments, by their names in the file."""
        weights = [weight for group in self.optimizer.param_groups for weight in group["params"]]
        shapes: dict[str, tuple[int, ...]] = {}
        for index, weight in enumerate(weights):
            shape = tuple(weight.shape)
            of_weight = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
            shapes |= {f"{_OPTIMIZER}{index}/{name}": s for name, s in of_weight.items()}
        return shapes


def saved_step(path: Path) -> int:
    """After how many optimiser steps the state in a file was kept.

    Args:
        path: of a `TrainingState`.

    Returns:
        The number, from 1 up.

    Raises:
        UserError: where the file is missing or damaged, or keeps no training state.
    """
    return _read(path)[2]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Tensors, header without the step, and the step."""
    tensors, header = load_tensors(path)
    step = header.pop("step", None)
    if not isinstance(step, int) or isinstance(step, bool) or step < 1:
        raise UserError(
            f"step is {shown(step)} in the training state {str(path)!r}: delete it, and the "
            "training begins again."
        )
    return tensors, header, step
