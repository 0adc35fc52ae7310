"""What dropping positions costs, and what recalibration brings back, out of a run's arrays."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from experiments.results.figures import figure
from experiments.results.findings import (
    Array,
    Figure,
    Panel,
    line,
    over_seeds,
    panel,
    share,
    share_curve,
)
from experiments.results.intervals import percents
from experiments.results.measured import Measured
from experiments.results.measurements import INTACT, LOSS, table

CONTROL = "intact, trained as long"
DROPPED, RECALIBRATED = "dropped", "dropped and recalibrated"
_WITHOUT = (DROPPED, RECALIBRATED)
_ORDER = (INTACT, CONTROL, DROPPED, RECALIBRATED)  # before the ways to scale rotary positions
_PASSKEY, _GUESSED = "passkey", 1 / 90_000

# Units along the first axis: windows of text, or prompts.
PerUnit = Float[Array, "unit point"]


def read_key(variant: str, length: int, what: str) -> str:
    """The name of what was read of a variant at a length.

    Args:
        variant: which model.
        length: in tokens.
        what: "losses" or "passkeys".

    Returns:
        A key of `Dropped.arrays`.
    """
    return f"read/{variant}/{length}/{what}"


def step_key(variant: str, step: int) -> str:
    """The name of the held-out losses of a training at a step.

    Args:
        variant: what the training ends in.
        step: of the optimiser.

    Returns:
        A key of `Dropped.arrays`.
    """
    return f"step/{variant}/{step}"


@dataclass(frozen=True)
class Dropped:
    """What was read of a model with and without its positions.

    Attributes:
        arrays: losses and passkeys, by `read_key` and `step_key`.
        facts: lengths and context in tokens, depths of passkeys, the loss of a guesser who knows
            how often tokens occur, whether windows begin with a begin token, and of a finished run
            its config.
    """

    arrays: Mapping[str, Array]
    facts: Mapping[str, Any]

    @property
    def variants(self) -> list[str]:
        """Every variant that was read."""
        found = {key.split("/")[1] for key in self.arrays if key.startswith("read/")}
        return [*(v for v in _ORDER if v in found), *sorted(found - set(_ORDER))]

    def lengths_of(self, variant: str) -> list[int]:
        """The lengths at which a variant was read, growing."""
        every: Sequence[int] = self.facts["lengths"]
        return [n for n in every if read_key(variant, n, "losses") in self.arrays]

    def losses(self, variant: str) -> PerUnit:
        """Nats per token of each window at each length."""
        found = [self.arrays[read_key(variant, n, "losses")] for n in self.lengths_of(variant)]
        return np.stack(found, axis=1)

    def passkeys(self, variant: str, length: int) -> PerUnit | None:
        """Of each prompt whether the key is said, at each depth.

        Args:
            variant: which model.
            length: in tokens.

        Returns:
            `[prompt depth]`, 1 where it is said, else 0; None where none was asked for.
        """
        found = self.arrays.get(read_key(variant, length, "passkeys"))
        return None if found is None else found[..., 0].T

    def curve(self, variant: str) -> tuple[Array, PerUnit]:
        """Steps of a training, and nats per token of each window after them."""
        prefix = f"step/{variant}/"
        steps = sorted(int(k.removeprefix(prefix)) for k in self.arrays if k.startswith(prefix))
        found = [self.arrays[step_key(variant, step)] for step in steps]
        return np.array(steps), np.stack(found, axis=1)

    def table(self, experiment: str, seed: int) -> pd.DataFrame:
        """The tidy table.

        Args:
            experiment: its name.
            seed: of the run.

        Returns:
            One row for each number, with its interval.
        """
        return table(self._rows({"experiment": experiment, "model": self.facts["model"]}, seed))

    def _rows(self, named: Mapping[str, Any], seed: int) -> Iterator[dict[str, Any]]:
        common = {
            **named,
            "tokens": "text",
            "begin_token": self.facts["begin_token"],
            "seed": seed,
            "step": pd.NA,
            "layer": -1,
            "head": pd.NA,
            "site": "",
            "control": "",
        }

        def row(variant: str, found: Measured, **more: Any) -> dict[str, Any]:
            taken = "rotary:none" if variant in _WITHOUT else INTACT
            return {**common, "variant": variant, "positions": taken, **vars(found), **more}

        chance = self.facts["chance"]
        for variant in (CONTROL, RECALIBRATED):
            if any(key.startswith(f"step/{variant}/") for key in self.arrays):
                steps, losses = self.curve(variant)
                for i, step in enumerate(steps.tolist()):
                    told = {"step": step, "probe": LOSS, "metric": "nats", "chance": chance}
                    yield row(variant, over_seeds(losses[:, i]), **told)
        for variant in self.variants:
            for i, length in enumerate(self.lengths_of(variant)):
                told = {"probe": LOSS, "metric": f"nats at {length} tokens", "chance": chance}
                yield row(variant, over_seeds(self.losses(variant)[:, i]), **told)
                said = self.passkeys(variant, length)
                if said is None:
                    continue
                for j, depth in enumerate(self.facts["depths"]):
                    metric = f"said at {length} tokens, depth {depth:g}"
                    told = {"probe": _PASSKEY, "metric": metric, "chance": _GUESSED}
                    yield row(variant, share(int(said[:, j].sum()), len(said)), **told)

    @property
    def cost(self) -> Measured:
        """Nats per token by which the loss rises when positions are dropped, before training."""
        return over_seeds(self._of(DROPPED) - self._of(INTACT))

    @property
    def brought_back(self) -> Measured | None:
        """How much of the way from the dropped model to the intact one trained as long
        recalibration went; None without that model, where its training harmed it, and where that
        way, or what the drop cost, is not surely longer than nothing."""
        if CONTROL not in self.variants or self.cost.ci_low <= 0 or self._harmed:
            return None
        if over_seeds(self._of(DROPPED) - self._of(CONTROL)).ci_low <= 0:
            return None
        every = [self._of(variant) for variant in (DROPPED, RECALIBRATED, CONTROL)]
        columns = np.stack(every, axis=1)
        return over_seeds(columns, lambda m: (m[:, 0] - m[:, 1]) / (m[:, 0] - m[:, 2]))

    @property
    def _harmed(self) -> bool:
        """Whether the intact model is surely worse once it was trained as long."""
        return over_seeds(self._of(CONTROL) - self._of(INTACT)).ci_low > 0

    @property
    def _length(self) -> int:
        """The longest length that was trained on, or else that is within the context, or else the
        shortest, in tokens."""
        shortest = [min(self.facts["lengths"])]
        within = self._up_to(self.facts["context"])
        return max(self._up_to(self._trained) or within or shortest)

    @property
    def _trained(self) -> int:
        """Tokens in a sequence that was trained on."""
        return int(self.facts["config"]["training"]["seq_len"])

    def _up_to(self, most: int) -> list[int]:
        """The lengths that were read, up to so many tokens."""
        return [length for length in self.facts["lengths"] if length <= most]

    def _of(self, variant: str) -> Float[Array, " window"]:
        return self.arrays[read_key(variant, self._length, "losses")]

    @property
    def headline(self) -> str:
        """What the drop costs, and what comes back."""
        back = self.brought_back
        if back is not None:
            span = percents((back.value, back.ci_low, back.ci_high))
            return (
                f"At {self._length} tokens the drop costs {self.cost.value:.2f} nats per token; "
                f"recalibration goes {span} of the way to the intact model trained as long."
            )
        mean = {v: self._of(v).mean() for v in (INTACT, DROPPED, RECALIBRATED)}
        steps, _ = self.curve(RECALIBRATED)
        return (
            f"At {self._length} tokens the drop takes the loss from {mean[INTACT]:.2f} to "
            f"{mean[DROPPED]:.2f} nats per token; {steps[-1]} steps of recalibration bring it to "
            f"{mean[RECALIBRATED]:.2f}."
        )

    @property
    def sentences(self) -> list[str]:
        """What the intact model has after as many steps, and what is read beyond the context."""
        told = []
        if CONTROL in self.variants:
            trained, intact = self._of(CONTROL), self._of(INTACT)
            told.append(
                "The intact model trained as long on the same text has "
                f"{trained.mean():.2f} nats per token."
            )
            if self._harmed:
                told.append(
                    f"Before it had {intact.mean():.2f}: this training harms it, so give a lower "
                    "--training.learning-rate, or fewer --steps."
                )
        return [*told, *self._longer_than_trained(), *self._beyond()]

    def _longer_than_trained(self) -> Iterator[str]:
        longest = max(self._up_to(self.facts["context"]), default=0)
        if longest > self._trained:
            recalibrated, intact = (
                self.arrays[read_key(variant, longest, "losses")].mean()
                for variant in (RECALIBRATED, INTACT)
            )
            yield (
                f"At {longest} tokens the recalibrated model, trained on {self._trained}, has a "
                f"loss of {recalibrated:.2f}, the intact one {intact:.2f}."
            )

    def _beyond(self) -> Iterator[str]:
        longest, context = max(self.facts["lengths"]), self.facts["context"]
        if longest <= context:
            return
        at = {v: self.arrays[read_key(v, longest, "losses")].mean() for v in self.variants}
        scaled = {variant: loss for variant, loss in at.items() if variant not in _ORDER}
        told = f"the intact one {at[INTACT]:.2f}"
        if scaled:
            best = min(scaled, key=scaled.__getitem__)
            told += f", and {scaled[best]:.2f} with {best}, the best scaling"
        yield (
            f"At {longest / context:.3g} times the context the recalibrated model has a loss of "
            f"{at[RECALIBRATED]:.2f}, {told}."
        )

    @property
    def by_variant(self) -> pd.DataFrame:
        """One row for each variant: loss and share of passkeys said, at each length."""
        return pd.DataFrame([self._row(variant) for variant in self.variants])

    def _row(self, variant: str) -> dict[str, Any]:
        row: dict[str, Any] = {"variant": variant}
        read = self.lengths_of(variant)
        for length in self.facts["lengths"]:
            at = read.index(length) if length in read else None
            loss = np.nan if at is None else float(self.losses(variant)[:, at].mean())
            row[f"loss at {length}"] = loss
        for length in self.facts["lengths"]:
            said = self.passkeys(variant, length)
            if any(key.endswith("/passkeys") for key in self.arrays):
                row[f"passkeys at {length}"] = np.nan if said is None else float(said.mean())
        return row

    @property
    def figures(self) -> tuple[Figure, ...]:
        """Loss by step, loss by length, passkeys by depth."""
        some = _by_step(self), _by_length(self)
        asked = any(key.endswith("/passkeys") for key in self.arrays)
        return (*some, _by_depth(self)) if asked else some


@figure("steps", "optimiser steps, plus 1", "nats per token", log="x")
def _by_step(found: Dropped) -> Iterator[Panel]:
    """Loss through recalibration.

    Held-out loss of the model without its positions. The intact model, trained as long on the same
    text, shows what the text alone gives. Bars are 95% intervals over windows of text.
    """
    curves = {v: found.curve(v) for v in (RECALIBRATED, CONTROL) if v in found.variants}
    steps, _ = curves[RECALIBRATED]
    chance = {"frequency of tokens": found.facts["chance"]}
    measured = {variant: losses for variant, (_, losses) in curves.items()}
    title = f"held-out text, {found.facts['config']['training']['seq_len']} tokens"
    yield panel(title, steps + 1, chance=chance, measured=measured)


@figure("lengths", "tokens read", "nats per token", log="x")
def _by_length(found: Dropped) -> Iterator[Panel]:
    """Loss by length.

    Losses are of the same last tokens at every length: only what precedes them grows. The context
    of the intact model is {found.facts[context]} tokens. Bars are 95% intervals over windows of
    text.
    """
    parts = []
    for variant in found.variants:
        lengths, losses = np.array(found.lengths_of(variant)), found.losses(variant)
        parts.append(panel("", lengths, measured={variant: losses}))
    yield Panel("held-out text", tuple(series for part in parts for series in part.series))


@figure("passkeys", "depth of the key", "share of keys said")
def _by_depth(found: Dropped) -> Iterator[Panel]:
    """Passkeys by depth.

    The share of prompts whose whole key the model says. Depth 0 is the beginning of the prompt, 1
    its end. Bars are Wilson's 95% intervals over prompts.
    """
    depths = np.array(found.facts["depths"])
    for length in found.facts["lengths"]:
        said = {variant: found.passkeys(variant, length) for variant in found.variants}
        measured = [
            share_curve(variant, depths, each) for variant, each in said.items() if each is not None
        ]
        guessed = line("guessed", "chance", depths, _GUESSED)
        yield Panel(f"{length} tokens", (guessed, *measured))
