"""The condition under which a model variant is read: positions intact, or some taken away."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from experiments.variants.config import ExperimentConfig
from nope_interp.hooked_model import HookedModel
from nope_interp.models.config import TransformerConfig
from nope_interp.models.transformer import HookedTransformer
from nope_interp.positions.ablation import PositionAblation, ablate_positions
from nope_interp.positions.conditions import parse_condition
from nope_interp.positions.layers import LayerPositions
from nope_interp.sites import layer_ranges


@dataclass(frozen=True)
class Ablation:
    """What is taken away while a model is read; any process can do it again.

    Attributes:
        how: as `ablate_positions` takes it; None leaves positions intact.
        layers: the blocks it acts in; None for all of them.
        heads: the heads it acts in; None for all of them.
        lift_window: whether sliding-window layers see all earlier tokens.
        seed: of the permutation of `shuffled`.
    """

    how: str | None = None
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    lift_window: bool = False
    seed: int = 0

    @property
    def name(self) -> str | None:
        """What it is called, such as "rotary:none"; None where positions stay intact."""
        return None if self.how is None else str(parse_condition(self.how))

    @property
    def in_words(self) -> str | None:
        """Its name and, where it does not act everywhere, the layers and heads in which it does:
        "rotary:none in layer 0, head 1"."""
        of_layers = [] if self.layers is None else [layer_ranges(self.layers)]
        heads = ", ".join(map(str, sorted(self.heads or ())))
        of_heads = [f"head{'s' if len(self.heads) > 1 else ''} {heads}"] if self.heads else []
        where = ", ".join([*of_layers, *of_heads])
        return f"{self.name} in {where}" if self.name and where else self.name

    def acts_in(self, layer: int) -> bool:
        """Whether it acts in this block."""
        return self.layers is None or layer in self.layers

    def seen(self, positions: Sequence[LayerPositions]) -> list[LayerPositions]:
        """What layers see under it: its windows and chunks are lifted where it acts."""

        def lifted(at: LayerPositions) -> LayerPositions:
            return replace(at, window=None, chunk=None) if self.acts_in(at.layer) else at

        return [lifted(at) if self.lift_window else at for at in positions]

    def of_each_layer(self, positions: Sequence[LayerPositions]) -> dict[int, "Ablation"]:
        """The same of one layer alone, for each layer with positions of its own that it acts in.

        Encodings that are added to the embedding cannot be taken from one layer: then there is
        none. Nor can those of layers that share their keys.
        """
        if any(at.encoding in ("learned", "sinusoidal") for at in positions):
            return {}
        shared = {
            layer for at in positions if at.keys_of is not None for layer in (at.keys_of, at.layer)
        }
        return {
            at.layer: replace(
                self,
                layers=(at.layer,),
                lift_window=self.lift_window and at.reach is not None,
            )
            for at in positions
            if self.acts_in(at.layer)
            and at.encoding not in ("none", "recurrence")
            and at.layer not in shared
        }

    @contextmanager
    def of(self, model: HookedModel) -> Iterator[PositionAblation | None]:
        """While it is open, `model` is under this condition; None where that is as it is.

        Raises UserError as `ablate_positions` does, and at the end where the model ran and a part
        of the ablation was never reached.
        """
        if self.how is None:
            yield None
            return
        with ablate_positions(
            model,
            self.how,
            layers=self.layers,
            heads=self.heads,
            lift_window=self.lift_window,
            seed=self.seed,
        ) as ablation:
            yield ablation
            if ablation.ran:  # else it was entered to see that it can be
                ablation.verify()

    def check(self, config: TransformerConfig) -> None:
        """Raise UserError for what cannot be taken away from a model of ours, before it is trained
        or anything is written."""
        if self.how is not None:
            with self.of(HookedTransformer(config)):
                pass


def ablation_of(config: ExperimentConfig) -> Ablation:
    """The positions that a config takes away before anything is read; none where it has no words
    for that."""
    return Ablation(
        getattr(config, "ablate", None),
        layers=getattr(config, "ablate_layers", None),
        heads=getattr(config, "ablate_heads", None),
        lift_window=getattr(config, "lift_window", False),
        seed=config.seed,
    )


def check_ablation(config: ExperimentConfig) -> None:
    """Refuse what cannot be taken away from the model that a config trains.

    Args:
        config: of any experiment.

    Raises:
        UserError: as `ablate_positions` does, before anything is trained, loaded or written.
    """
    if config.model is None:
        ablation_of(config).check(config.transformer)
