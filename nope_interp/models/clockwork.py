"""The Clockwork RNN (Koutnik et al. 2014, arXiv 1402.3511), every module a hook point.

A simple recurrent network whose hidden units are split into modules with clocks of their own: a
module with period T changes at time steps 0, T, 2T, ... and keeps its state in between, and it
reads only itself and slower modules. Like a ladder of rotary frequencies, a ladder of periods gives
one model fast parts that tell neighbours apart and slow parts that tell far places apart.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, no_type_check

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformer_lens.config import TransformerLensConfig
from transformer_lens.hook_points import HookPoint

from nope_interp.errors import UserError
from nope_interp.fields import Count, Seed, check_fields
from nope_interp.models.attention import linear
from nope_interp.models.hooked_module import HookedModule
from nope_interp.models.initialization import Initializer

POWERS_OF_TWO = tuple(2**k for k in range(8))


@no_type_check  # it checks itself, in sentences
@dataclass(frozen=True)
class ClockworkConfig:
    """The sizes and the clocks of a Clockwork RNN (Koutnik et al. 2014, arXiv 1402.3511).

    Attributes:
        d_in: numbers that come in at a time step.
        d_hidden: hidden units in all; every module has an equal share of them.
        d_out: numbers that go out at a time step.
        periods: one per module, growing, in time steps: 1, 2, 4, ..., 128 unless given.
        seed: of the weights at initialisation.

    Wrong values raise `UserError` with one sentence that names the field and the remedy.

    Example:
        >>> ClockworkConfig(d_in=1, d_hidden=64, d_out=1).n_recurrent
        2304
    """

    d_in: Count
    d_hidden: Count
    d_out: Count
    periods: tuple[Count, ...] = POWERS_OF_TWO
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_fields(self, "clockwork")
        if not self.periods:
            raise UserError("clockwork periods are none: give at least one.")
        if any(slower <= faster for faster, slower in pairwise(self.periods)):
            raise UserError(
                f"clockwork periods are {self.periods}: make each larger than the one before it."
            )
        if self.d_hidden % len(self.periods):
            raise UserError(
                f"clockwork d_hidden {self.d_hidden} does not divide into {len(self.periods)} "
                f"modules: make it a multiple of the number of periods."
            )

    @property
    def width(self) -> int:
        """Hidden units of one module."""
        return self.d_hidden // len(self.periods)

    @property
    def n_recurrent(self) -> int:
        """Recurrent weights: n²/2 + n²/(2g), the block triangle of n units in g equal modules."""
        return (self.d_hidden**2 + self.d_hidden * self.width) // 2

    @property
    def n_parameters(self) -> int:
        """All weights, with the read-out's and its bias; there are no hidden biases."""
        return self.n_recurrent + self.d_hidden * (self.d_in + self.d_out) + self.d_out


class _Recurrence(torch.autograd.Function):
    """h(k) = tanh(drive(k) + W h(k-1)) from h(-1) = 0, with its gradient through time.

    By hand, since autograd would keep graph nodes and a whole weight gradient for every step: here
    the weight gradient is one product over all steps, and steps write in place.
    """

    @staticmethod
    def forward(
        ctx: Any, drive: Float[Tensor, "batch step width"], weight: Float[Tensor, "width width"]
    ) -> Float[Tensor, "batch step width"]:
        states, read = _steps_first(drive), weight.T
        state = torch.zeros_like(states[0])
        for following in states.unbind():
            state = following.addmm_(state, read).tanh_()
        ctx.save_for_backward(states, weight)
        return rearrange(states, "step batch width -> batch step width")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        slopes = 1 - states.square()  # tanh' = 1 - tanh²
        errors = _steps_first(gradient)
        error = torch.zeros_like(errors[0])
        for earlier, slope in zip(
            reversed(errors.unbind()), reversed(slopes.unbind()), strict=True
        ):
            error = earlier.addmm_(error, weight).mul_(slope)
        weight_gradient = einsum(errors[1:], states[:-1], "step batch i, step batch j -> i j")
        return rearrange(errors, "step batch width -> batch step width"), weight_gradient


def _steps_first(values: Float[Tensor, "batch step width"]) -> Float[Tensor, "step batch width"]:
    """A copy in which each step's numbers lie together, to be written over."""
    steps = rearrange(values, "batch step width -> step batch width")
    return steps.clone(memory_format=torch.contiguous_format)


class ClockModule(nn.Module):
    """The units that share one clock: their rows of the network's weights, without the zeros.

    `W_I` is `[width d_in]`; `W_H` is `[width width+slower]`: what the module reads of itself, then
    of the slower modules. What it would read of faster ones has no weights.
    """

    def __init__(self, config: ClockworkConfig, index: int) -> None:
        super().__init__()
        self.period = config.periods[index]
        n_read = config.d_hidden - index * config.width
        self.W_I = nn.Parameter(torch.empty(config.width, config.d_in))
        self.W_H = nn.Parameter(torch.empty(config.width, n_read))
        self.hook_hidden = HookPoint()

    @torch.no_grad()
    def initialize(self, draw: Initializer) -> None:
        both = torch.empty(len(self.W_H), self.W_I.shape[1] + self.W_H.shape[1])
        draw(both)
        self.W_I.copy_(both[:, : self.W_I.shape[1]])
        self.W_H.copy_(both[:, self.W_I.shape[1] :])

    def forward(
        self, inputs: Float[Tensor, "batch time d_in"], slower: Float[Tensor, "batch time slower"]
    ) -> Float[Tensor, "batch time width"]:
        """The module's state at every time step, computed at its active ones only."""
        n_steps = inputs.shape[1]
        period = min(self.period, n_steps)  # what is longer than the sequence is active once
        W_own, W_slower = self.W_H.tensor_split([len(self.W_H)], dim=1)
        # At its active time t the module reads the slower states of t - 1, which are 0 at t = 0.
        read = F.linear(slower[:, period - 1 : n_steps - 1 : period], W_slower)
        drive = F.linear(inputs[:, ::period], self.W_I) + F.pad(read, (0, 0, 1, 0))
        states = _Recurrence.apply(drive, W_own)  # type: ignore[no-untyped-call]
        return self.hook_hidden(states.repeat_interleave(period, dim=1)[:, :n_steps])


class ClockworkRNN(HookedModule):
    """A Clockwork RNN with TransformerLens's interface, built from one config.

    In the paper's words, with f = tanh and a linear read-out::

        h(t) = f(W_H h(t-1) + W_I x(t))     rows of active modules; the others keep h(t-1)
        y(t) = W_O h(t) + b

    Module i is active where t mod T_i = 0, counted from t = 0 and h(-1) = 0. Modules are sorted by
    growing period, so `W_H` is block-upper-triangular, and its other blocks do not exist: no
    optimiser can fill them. There are no hidden biases; a constant input stands in for them.

    Since no module reads a faster one, modules run one after the other, slowest first, each over
    its own active steps only.

    The hook points, in the order in which they fire::

        modules.{i}.hook_hidden   [batch time width]; slowest, the last, first
        hook_hidden               [batch time d_hidden]; fastest module first

    What a hook on a module returns is read by the faster modules and by the read-out, and not by
    the module itself. A new model's weights are drawn from `config.seed`, all of a unit's in
    +-1/sqrt(how many numbers it reads), and leave torch's global generator alone.

    Example:
        >>> model = ClockworkRNN(ClockworkConfig(d_in=1, d_hidden=32, d_out=1, periods=(1, 4)))
        >>> outputs, cache = model.run_with_cache(torch.ones(2, 10, 1))
        >>> cache["modules.1.hook_hidden"].shape
        torch.Size([2, 10, 16])
    """

    def __init__(self, config: ClockworkConfig) -> None:
        super().__init__()
        self.config = config
        self._cfg = TransformerLensConfig(
            d_model=config.d_hidden,
            d_head=config.width,
            n_layers=len(config.periods),
            n_ctx=-1,  # there is no longest sequence
            d_vocab=config.d_out,
            act_fn="tanh",
            normalization_type=None,
        )
        # Under its name for hooks. torch's own `modules()` keeps the attribute, hence `clocks`.
        self._modules["modules"] = nn.ModuleList(
            ClockModule(config, index) for index in range(len(config.periods))
        )
        self.hook_hidden = HookPoint()
        self.readout = linear(config.d_hidden, config.d_out)
        self._initialize()
        self.setup()
        self.eval()

    @property
    def cfg(self) -> TransformerLensConfig:
        """What TransformerLens's caches read; a module counts as a layer."""
        self._cfg.device = str(self.readout.weight.device)
        self._cfg.dtype = self.readout.weight.dtype
        return self._cfg

    @property
    def clocks(self) -> list[ClockModule]:
        """The modules, fastest first."""
        return list(self._modules["modules"])

    def forward(self, inputs: Tensor) -> Float[Tensor, "batch time d_out"]:
        """Outputs at every time step for inputs `[batch time d_in]`.

        Raises:
            UserError: for inputs of a wrong shape or type, none at all, NaN or infinite ones.
        """
        self._check_inputs(inputs)
        hidden = inputs[..., :0]
        for clock in reversed(self.clocks):
            hidden = torch.cat((clock(inputs, hidden), hidden), dim=-1)
        return self.readout(self.hook_hidden(hidden))

    @property
    def W_H(self) -> Float[Tensor, "d_hidden d_hidden"]:
        """The recurrent weights as the paper writes them, `[d_hidden d_hidden]`: row blocks, zeros
        for faster modules."""
        width = self.config.width
        return torch.cat([F.pad(c.W_H, (i * width, 0)) for i, c in enumerate(self.clocks)])

    @property
    def W_I(self) -> Float[Tensor, "d_hidden d_in"]:
        """What the modules read of the inputs, `[d_hidden d_in]`."""
        return torch.cat([clock.W_I for clock in self.clocks])

    @property
    def W_U(self) -> Float[Tensor, "d_hidden d_out"]:
        """What the outputs read of the modules, `[d_hidden d_out]`."""
        return self.readout.weight.T

    def _initialize(self) -> None:
        # A standard deviation of 1/sqrt(3 n) is a uniform bound of 1/sqrt(n), torch's for an RNN.
        draw = Initializer("kaiming_uniform", 1 / math.sqrt(3), self.config.seed)
        for clock in self.clocks:
            clock.initialize(draw)
        draw(self.readout.weight)
        nn.init.zeros_(self.readout.bias)

    def _check_inputs(self, inputs: object) -> None:
        if not isinstance(inputs, Tensor):
            raise UserError(
                f"inputs are a {type(inputs).__name__}: give a tensor of shape (batch, time, d_in)."
            )
        d_in, dtype = self.config.d_in, self.readout.weight.dtype
        if inputs.ndim != 3 or inputs.shape[2] != d_in:
            raise UserError(
                f"inputs have shape {tuple(inputs.shape)}: give a tensor of shape "
                f"(batch, time, {d_in})."
            )
        if inputs.dtype != dtype:
            raise UserError(f"inputs are {inputs.dtype}: give {dtype}, as the weights are.")
        if inputs.numel() == 0:
            raise UserError("there are no inputs: give at least one sequence of one time step.")
        if not inputs.isfinite().all():
            raise UserError("inputs hold NaN or infinite numbers: give finite ones.")
