"""What a model answers while its activations are changed, tallied by sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from experiments.codes.counterfactual import Asked, TokenIds
from experiments.codes.task import InterventionTask
from nope_interp.interventions.intervene import intervene
from nope_interp.models.marked import logits_at
from nope_interp.models.transformer import HookedTransformer
from probes.codes.statistics import Intervention

PerExample = Float[np.ndarray, " sequence"]
# An intervention at each of some sites, by hook name.
Changes = Mapping[str, Intervention]

# Examples are short: more of them than a batch of texts go into one forward pass.
_TOKENS = 2**13


@dataclass(frozen=True)
class Answers:
    """What came of the answers that are counted, for each sequence.

    Attributes:
        follows: how many are the token aimed at, or, aimed away from it, are not.
        stays: how many are the own one.
        log_odds: of the token aimed at over all others but the own, in nats, mean over the
            sequence's answers; with the sign changed where the aim is away. 0 where none is
            counted.
    """

    follows: PerExample
    stays: PerExample
    log_odds: PerExample

    def of(self, which: Sequence[int]) -> "Answers":
        """Those of some of the sequences, by their numbers; one may come more than once."""
        at = list(which)
        return Answers(self.follows[at], self.stays[at], self.log_odds[at])


@dataclass(frozen=True)
class Asking:
    """What a model is asked, and which answer is looked for.

    Attributes:
        task: the model, one of ours; `task.positions` are those where activations are changed.
        own: `[sequence pos]`, the token that is answered at each position.
        aim: the same, the token that is looked for.
        counted: `[sequence pos]`, which answers count.
        away: whether answers are to leave that token.
    """

    task: InterventionTask
    own: TokenIds
    aim: TokenIds
    counted: Asked
    away: bool = False

    @property
    def n(self) -> PerExample:
        """How many answers of each sequence count."""
        return self.counted.sum(dim=1).double().numpy()

    def of(self, which: Sequence[int]) -> "Asking":
        """The same of some of the sequences, by their numbers; one may come more than once."""
        at, split = list(which), self.task.split
        task = replace(self.task, split=replace(split, held_out=split.held_out[at]))
        return Asking(task, self.own[at], self.aim[at], self.counted[at], self.away)

    def right(self) -> Asked:
        """Which of the answers that count are the own one, in the model as it is."""
        found = torch.zeros_like(self.counted)
        if self.counted.any():
            found[self.counted] = self._logits({}).argmax(dim=-1) == self.own[self.counted]
        return found

    def answers(self, changes: Changes) -> Answers:
        """What is answered while activations are changed.

        Args:
            changes: an intervention for each hook name.

        Returns:
            The tally; all zero where no answer counts.

        Raises:
            UserError: where a hook point never fires, and what `intervene` raises.
        """
        own, aim = self.own[self.counted], self.aim[self.counted]
        if not len(own):
            none = np.zeros(len(self.counted))
            return Answers(none, none, none)
        logits = self._logits(changes)
        said, sign = logits.argmax(dim=-1), -1 if self.away else 1
        margin = sign * _log_odds(logits, aim, own)
        average = self._summed(margin) / np.maximum(self.n, 1)
        return Answers(self._summed((said == aim) ^ self.away), self._summed(said == own), average)

    @torch.no_grad()
    def _logits(self, changes: Changes) -> Float[Tensor, "asked d_vocab"]:
        """In reading order; at least one answer is to count."""
        model, tokens = self.task.model, self.task.split.held_out
        assert isinstance(model, HookedTransformer)  # as `answers_of` saw to
        batch = max(1, _TOKENS // tokens.shape[1])
        parts = zip(tokens.split(batch), self.counted.split(batch), strict=True)
        with intervene(model, changes, self.task.positions) as intervention:
            found = [
                logits_at(model, some, wanted).float().cpu()
                for some, wanted in parts
                if wanted.any()
            ]
            intervention.verify()
        return torch.cat(found)

    def _summed(self, values: Float[Tensor, " asked"] | Bool[Tensor, " asked"]) -> PerExample:
        found = torch.zeros(len(self.counted), dtype=torch.float64)
        rows = self.counted.nonzero()[:, 0]
        return found.index_add_(0, rows, values.double()).numpy()


def _log_odds(
    logits: Float[Tensor, "asked d_vocab"], aim: Int[Tensor, " asked"], own: Int[Tensor, " asked"]
) -> Float[Tensor, " asked"]:
    """Those of the token aimed at over all tokens but itself and the own one."""
    rest = logits.scatter(1, torch.stack([aim, own], dim=1), -torch.inf)
    return logits.gather(1, aim[:, None])[:, 0] - rest.logsumexp(dim=1)
