"""What the streaming probes share: the order of calls, and the checks on what they are given."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from einops import repeat
from jaxtyping import Float, Int
from torch import Tensor

from probes._position_errors import PositionErrors
from probes.checks import check_another, check_seed, check_whole
from probes.controls import shuffled_positions, skip_shuffled
from probes.errors import ProbeError
from probes.scores import ProbeResult
from probes.shapes import PerPosition

# Where typing.Self would stand, which the run-time checks of the tests cannot read.
Fit = TypeVar("Fit", bound="StreamingFit")
Probe = TypeVar("Probe", bound="StreamingProbe")

# Numbers of the activations that are worked on at one time: 1 MiB in single precision.
_CACHED = 2**18


def upcast(activations: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The same numbers in float32 where they came in half precision; otherwise no copy."""
    half = activations.dtype in (torch.float16, torch.bfloat16)
    return activations.float() if half else activations


def few_at_a_time(activations: Float[Tensor, "batch *shape"]) -> Sequence[Tensor]:
    """So few sequences each that what is computed of them stays in a processor's cache."""
    at_once = max(1, _CACHED // max(activations[:1].numel(), 1))
    return list(activations.split(at_once))


def require_finite(statistic: Float[Tensor, "*shape"]) -> None:
    """Raises ProbeError where a sum over the activations shows that they hold NaN or infinity.

    One such number spoils every sum it enters: a look at a small statistic is a look at them all.
    """
    if not torch.isfinite(statistic).all():
        raise ProbeError(
            "activations hold NaN or infinite numbers: look for the first layer that makes them, "
            "or run the model in float32"
        )


def require_tensor(given: object, name: str) -> None:
    """Raises ProbeError for anything but a tensor; `name` says, in the plural, what it is."""
    if not isinstance(given, Tensor):
        raise ProbeError(
            f"{name} are a {type(given).__name__}; expected a tensor: torch.from_numpy() makes one "
            "of a NumPy array"
        )


def require_numbers(given: Any, name: str, axes: Sequence[str], square: str = "") -> None:
    """Refuses anything but a filled tensor of floats with these axes.

    Args:
        given: what is checked.
        name: what it is, in the plural, as the message says it.
        axes: the names of its axes, in order.
        square: how to ask for the last two axes to be of one length; empty where they need not be.

    Raises:
        ProbeError: for anything else, in words that name it.
    """
    require_tensor(given, name)
    shape = tuple(given.shape)
    if len(shape) != len(axes) or (square and shape[-2] != shape[-1]):
        raise ProbeError(f"{name} have shape {shape}; expected ({', '.join(axes)}){square}")
    if 0 in shape:
        raise ProbeError(f"{name} have shape {shape}: the {axes[shape.index(0)]} axis is empty")
    if not given.is_floating_point():
        raise ProbeError(f"{name} are {given.dtype}; expected floating point")


class StreamingFit(ABC):
    """What is fitted on activations batch by batch and merged, and the checks on what it is given.

    Subclasses say what to keep of a batch (`_fit`) and how two such statistics add up
    (`_merge_fit`).

    Attributes:
        d_model: width of the activations; 0 before the first.
        positions: [pos], those of every sequence; empty before the first.
        n_fitted: sequences given to `update`, here or to what was merged.
    """

    def __init__(self) -> None:
        self.n_fitted = 0
        self.d_model = 0
        self.positions = torch.empty(0, dtype=torch.int64)

    # Shapes are checked here, in words, rather than by the annotation.
    def update(self, activations: Tensor, positions: Tensor) -> None:
        """Adds sequences to fit on.

        Args:
            activations: [batch pos d_model], any float type.
            positions: [pos], whole numbers from 0 upwards, strictly increasing.

        Raises:
            ProbeError: for other shapes, for NaN or infinity, and for sizes or positions that
                change between batches.
        """
        self._check(activations, positions)
        self._fit(activations.detach())
        self.n_fitted += len(activations)

    def merge(self: Fit, other: Fit) -> None:
        """Adds what `other` was fitted on.

        Args:
            other: one of the same kind, given other sequences.

        Raises:
            ProbeError: where the two saw different sizes or positions, or are one.
        """
        check_another(self, other)
        if other.n_fitted:
            self._adopt(other.d_model, other.positions)
            self._merge_fit(other)
            self.n_fitted += other.n_fitted

    def _check(self, activations: Tensor, positions: Tensor) -> None:
        require_tensor(positions, "positions")
        require_numbers(activations, "activations", ("batch", "pos", "d_model"))
        shape = tuple(activations.shape)
        if positions.is_floating_point():
            raise ProbeError(f"positions are {positions.dtype}; expected whole numbers")
        if tuple(positions.shape) != shape[1:2]:
            raise ProbeError(
                f"positions have shape {tuple(positions.shape)}; expected ({shape[1]},), one for "
                f"each step of the pos axis of activations {shape}"
            )
        # Copied: the caller's may change in place. Differences of unsigned numbers would wrap.
        self._adopt(shape[2], positions.to("cpu", torch.int64, copy=True))

    def _adopt(self, d_model: int, positions: Tensor) -> None:
        if not self.d_model:
            if len(positions) < 2 or (positions.diff() <= 0).any() or positions[0] < 0:
                raise ProbeError(
                    "positions must be at least 2 whole numbers from 0 upwards, strictly "
                    f"increasing; got {positions.tolist()[:8]}"
                )
            self.d_model, self.positions = d_model, positions
        if d_model != self.d_model:
            raise ProbeError(
                f"d_model changed from {self.d_model} to {d_model} between batches: "
                "use one probe per layer and site"
            )
        if not torch.equal(positions, self.positions):
            raise ProbeError(
                f"positions changed between batches, from {_span(self.positions)} to "
                f"{_span(positions)}: cut all sequences to one length"
            )

    @abstractmethod
    def _fit(self, activations: Tensor) -> None: ...

    # Typed by what each subclass is: two of one kind merge.
    @abstractmethod
    def _merge_fit(self, other: Any) -> None: ...


class StreamingProbe(StreamingFit):
    """A probe fed batch by batch, which keeps statistics only and never the activations.

    A probe is fitted with `update`, scored with `evaluate`, and read with `result`, which is keyed
    by the probe's name in the measurements, because one set of statistics may answer for several:
    the Gram matrix of `LinearProbe` gives "linear" and "counting". Subclasses say,
    beside what a `StreamingFit` says, how to solve (`_solve`), what to keep of a held-out batch
    (`_score`), and what came out (`_result`).

    Over several machines: send each a `for_shard` of a new probe, `update` it there and `merge` all
    into one; send each a `for_shard` of that, `evaluate` there, and `merge` again. Every value is
    then that of one probe alone, to rounding; intervals are of other resamples.

    Args:
        seed: of the permutations and of the bootstrap.
        n_resamples: of the bootstrap over held-out sequences; at least 2.

    Raises:
        ProbeError: for an `n_resamples` below 2, and what is no seed.
    """

    def __init__(self, *, seed: int = 0, n_resamples: int = 1000) -> None:
        super().__init__()
        self.n_resamples = check_whole("n_resamples", n_resamples, 2)
        self.n_held_out = 0
        self._solved = False
        self.seed = check_seed(seed)
        self._generator = torch.Generator().manual_seed(self.seed)
        self._permuted_elsewhere = 0

    def update(self, activations: Tensor, positions: Tensor) -> None:
        """Adds sequences to fit on.

        Args:
            activations: [batch pos d_model], any float type.
            positions: [pos], whole numbers from 0 upwards, strictly increasing.

        Raises:
            ProbeError: as `StreamingFit.update`, and after `evaluate`.
        """
        if self._solved:
            raise ProbeError(
                "update() came after evaluate(), which has solved the fit: "
                "give all sequences to fit on first, or start a new probe"
            )
        super().update(activations, positions)

    def evaluate(self, activations: Tensor, positions: Tensor) -> None:
        """Adds held-out sequences. The first call solves the fit.

        Args:
            activations: [batch pos d_model], any float type.
            positions: [pos], whole numbers from 0 upwards, strictly increasing.

        Raises:
            ProbeError: as `StreamingFit.update`, and where fewer than 2 sequences were fitted.
        """
        if not self._solved and self.n_fitted < 2:
            raise ProbeError(
                f"evaluate() has nothing to judge: the probe was fitted on {self.n_fitted} "
                "sequences; give at least 2 to update() first"
            )
        self._check(activations, positions)
        if not self._solved:
            self._solve()
            self._solved = True
        self._score(activations.detach())
        self.n_held_out += len(activations)

    def merge(self: Probe, other: Probe) -> None:
        """Adds what `other` saw: fits before any `evaluate`, held-out sequences after it.

        Args:
            other: a probe of the same kind, given other sequences.

        Raises:
            ProbeError: where the two are at different stages, saw different sizes or positions,
                were fitted differently, drew the same bootstrap weights, or are one.
        """
        if not other.n_fitted:
            return
        if self._alike() != other._alike():
            raise ProbeError(
                f"cannot merge probes of different settings, {self._alike()} and "
                f"{other._alike()}: start them alike"
            )
        if self._solved != other._solved:
            raise ProbeError(
                "cannot merge a probe that has evaluated with one that has not: merge the fits "
                "first, then evaluate on each machine with for_shard()"
            )
        if self._solved:
            self._merge_held_out(other)
        else:
            super().merge(other)
            self._permute_after(self._n_permuted(self.n_fitted))

    def _merge_held_out(self: Probe, other: Probe) -> None:
        check_another(self, other)
        self._adopt(other.d_model, other.positions)
        if not _same(self._fitted(), other._fitted()):
            raise ProbeError(
                "cannot merge held-out sequences judged by two different fits: merge the fits "
                "first, then evaluate on each machine with for_shard()"
            )
        self._merge_scores(other)
        self.n_held_out += other.n_held_out

    def for_shard(self: Probe, seed: int, start: int) -> Probe:
        """A copy with the same fit, to `update` or to `evaluate` on another machine.

        Args:
            seed: of its bootstrap; give every shard another.
            start: how many of the sequences to fit on, or else of those held out, come before the
                shard's own, so that their labels are permuted as one probe alone would permute
                them.

        Returns:
            The copy.

        Raises:
            ProbeError: after `evaluate`, and for what is no seed.
        """
        if self._solved:
            raise ProbeError("for_shard() came after evaluate(): hand the copies out before it")
        shard = copy.deepcopy(self)
        shard.seed = check_whole("seed", seed, 0)
        shard._permute_after(self._n_permuted(self.n_fitted) + self._n_permuted(start))
        return shard

    def result(self) -> dict[str, ProbeResult]:
        """What came out.

        Returns:
            Scores, in the probe's own units, and arrays for figures; by probe name.

        Raises:
            ProbeError: before 2 held-out sequences.
        """
        if self.n_held_out < 2:
            raise ProbeError(
                f"result() has too little to stand on: {self.n_held_out} held-out sequences were "
                "evaluated; give at least 2 to evaluate() first"
            )
        return self._result()

    def _alike(self) -> tuple[Any, ...]:
        """What two probes that merge have alike, beside what they saw."""
        return type(self).__name__, self.n_resamples

    def _labels(self, batch: int) -> Int[Tensor, "control batch pos"]:
        """The true positions, and for the control the same ones shuffled."""
        true = repeat(self.positions, "pos -> batch pos", batch=batch)
        skip_shuffled(self._permuted_elsewhere, self.positions, self._generator)
        self._permuted_elsewhere = 0
        return torch.stack([true, shuffled_positions(batch, self.positions, self._generator)])

    def _permute_after(self, n_sequences: int) -> None:
        """The next shuffled labels are those that come after as many sequences'."""
        self._generator.manual_seed(self._generator.initial_seed())
        self._permuted_elsewhere = n_sequences

    def _n_permuted(self, n_sequences: int) -> int:
        """How many of the first sequences of a stage have their labels permuted."""
        return n_sequences

    def _position_errors(
        self, target: PerPosition, uninformed: float | None = None
    ) -> PositionErrors:
        return PositionErrors(self.positions, target, self.n_resamples, self.seed, uninformed)

    @abstractmethod
    def _solve(self) -> None: ...

    @abstractmethod
    def _score(self, activations: Tensor) -> None: ...

    @abstractmethod
    def _fitted(self) -> Sequence[np.ndarray]: ...

    @abstractmethod
    def _merge_scores(self, other: Any) -> None: ...

    @abstractmethod
    def _result(self) -> dict[str, ProbeResult]: ...


class PositionProbe(StreamingProbe):
    """A probe whose one result is the errors of the positions that it predicts.

    Attributes:
        name: what the result is keyed by.
    """

    name: ClassVar[str]

    def _solve(self) -> None:
        self._errors = self._position_errors(self.positions.double())

    def _merge_scores(self, other: "PositionProbe") -> None:
        self._errors.merge(other._errors)

    def _result(self) -> dict[str, ProbeResult]:
        return {self.name: ProbeResult(self._errors.scores(), self._errors.arrays())}


def _span(positions: Tensor) -> str:
    return f"{len(positions)} positions {int(positions[0])}..{int(positions[-1])}"


def _same(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> bool:
    # Sums merged in another order differ by rounding: equal up to that is the same fit.
    return all(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-6, atol=1e-9 * np.abs(a).max())
        for a, b in zip(ours, theirs, strict=True)
    )
