"""What every model of ours shares: hook names that must exist, caches, and text in and out."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import ActivationCache, HookedRootModule
from transformer_lens.config import TransformerLensConfig

from nope_interp.errors import UserError, unknown_name
from nope_interp.shapes import Tokens

HookFunction = Callable[..., Any]
HookName = str | Callable[[str], bool]
HookNames = HookName | Iterable[str] | None
NamedHook = tuple[HookName, HookFunction]
Hooks = Sequence[NamedHook]


@runtime_checkable
class Tokenizer(Protocol):
    """Turns text into token ids and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class HookedModule(HookedRootModule):
    """TransformerLens's `HookedRootModule` with caches like a bridge's and no silent misses.

    A hook name that matches nothing is an error, here and in `run_with_cache`. Subclasses have
    `cfg` and `W_U`, and call `setup()` once their modules are there.
    """

    cfg: TransformerLensConfig
    tokenizer: Tokenizer | None

    def __init__(self, tokenizer: Tokenizer | None = None) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    def hooks(
        self,
        fwd_hooks: Hooks = (),
        bwd_hooks: Hooks = (),
        reset_hooks_end: bool = True,
        clear_contexts: bool = False,
    ) -> AbstractContextManager[Any]:
        """A context in which these hooks are attached; `run_with_hooks` goes through here.

        Args:
            fwd_hooks: pairs of a hook point's name, or a function that says yes to names, and a
                function `(tensor, hook)` that returns a replacement or None.
            bwd_hooks: such pairs for gradients.
            reset_hooks_end: whether the hooks are taken off at the end.
            clear_contexts: whether `hook.ctx` is emptied then, too.

        Returns:
            The context.

        Raises:
            UserError: for a name that is no hook point, or that cannot fire at present.
        """
        for name, _ in (*fwd_hooks, *bwd_hooks):
            self._names_matching(name)
        return super().hooks(list(fwd_hooks), list(bwd_hooks), reset_hooks_end, clear_contexts)

    def add_hook(self, name: HookName, hook: HookFunction, *args: Any, **kwargs: Any) -> None:
        """Attaches a hook until `reset_hooks()`.

        Args:
            name: a hook point's, or a function that says yes to names.
            hook: as in `hooks`.
            *args: TransformerLens's, such as the direction.
            **kwargs: the same by name.

        Raises:
            UserError: as `hooks`.
        """
        self._names_matching(name)
        super().add_hook(name, hook, *args, **kwargs)

    def run_with_cache(
        self,
        *model_args: Any,
        names_filter: HookNames = None,
        return_cache_object: bool = True,
        remove_batch_dim: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ActivationCache | dict[str, Tensor]]:
        """The model's output and its activations by name.

        Args:
            *model_args: what `forward` takes: tokens `[batch pos]` first.
            names_filter: which activations to keep, as one name, several, or a function that says
                yes to names; all that can fire where None.
            return_cache_object: False gives a plain dict.
            remove_batch_dim: drops the batch axis of a single sequence.
            **kwargs: `device`, `incl_bwd`, `pos_slice` and the like are TransformerLens's;
                everything else goes to `forward`.

        Returns:
            What `forward` gives, and the activations: a residual stream's are `[batch pos
            d_model]`.

        Raises:
            UserError: for an unknown name, or for more than one sequence where the batch axis is
                to go.
        """
        names = self._names_to_cache(names_filter)
        if remove_batch_dim and model_args and len(model_args[0]) != 1:
            raise UserError(
                f"remove_batch_dim needs a single sequence, not {len(model_args[0])}: "
                f"give one, or keep the batch axis."
            )
        output, cache = super().run_with_cache(
            *model_args, names_filter=names, remove_batch_dim=remove_batch_dim, **kwargs
        )
        if not return_cache_object:
            return output, cache
        return output, ActivationCache(cache, self, has_batch_dim=not remove_batch_dim)

    def to_tokens(self, text: str | list[str]) -> Tokens:
        """Token ids of one text, or of several of equal length.

        Args:
            text: one, or several.

        Returns:
            `[batch pos]`.

        Raises:
            UserError: without a tokenizer, for empty text, and for texts of unequal length, since
                padding would shift positions.
        """
        texts = [text] if isinstance(text, str) else text
        sequences = [self._tokenizer().encode(one) for one in texts]
        lengths = {len(sequence) for sequence in sequences}
        if not sequences or 0 in lengths:
            raise UserError("there is no text to turn into tokens: give at least one character.")
        if len(lengths) > 1:
            raise UserError(
                f"the texts have {min(lengths)} to {max(lengths)} tokens: cut them to one length, "
                f"since padding would shift positions."
            )
        return torch.tensor(sequences, device=self.cfg.device)

    def to_str_tokens(self, text: str | Sequence[int] | Tensor) -> list[str]:
        """The text of each token of one sequence, given as text or as token ids.

        Args:
            text: text, or the ids of one sequence.

        Returns:
            One text a token.
        """
        ids = self.to_tokens(text) if isinstance(text, str) else torch.as_tensor(text)
        tokenizer = self._tokenizer()
        return [tokenizer.decode([token]) for token in ids.flatten().tolist()]

    def to_single_token(self, text: str) -> int:
        """The id of a text that is one token.

        Args:
            text: of one token.

        Returns:
            The id.

        Raises:
            UserError: where it is more or fewer.
        """
        tokens = self._tokenizer().encode(text)
        if len(tokens) != 1:
            raise UserError(f"{text!r} is {len(tokens)} tokens: give a text that is exactly one.")
        return tokens[0]

    def tokens_to_residual_directions(
        self, tokens: str | int | Int[Tensor, "..."]
    ) -> Float[Tensor, "... d_model"]:
        """The unembedding vector of each token: what a residual is dotted with for its logit.

        A single token, also in a tensor of one element, gives a vector, as in TransformerLens.

        Args:
            tokens: one token as text, or ids of any shape.

        Returns:
            `[... d_model]`.
        """
        if isinstance(tokens, str):
            tokens = self.to_single_token(tokens)
        if isinstance(tokens, Tensor) and tokens.numel() == 1:
            tokens = int(tokens.item())
        return self.W_U.T[tokens]

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise UserError(
                "this model has no tokenizer: set model.tokenizer, or give token ids, not text."
            )
        return self.tokenizer

    def _names_to_cache(self, wanted: HookNames) -> list[str]:
        if wanted is None:
            return [name for name in self.hook_dict if self._silent_because(name) is None]
        if isinstance(wanted, str) or callable(wanted):
            return self._names_matching(wanted)
        return [name for one in wanted for name in self._names_matching(one)]

    def _names_matching(self, name: HookName) -> list[str]:
        if callable(name):
            matching = [known for known in self._names_to_cache(None) if name(known)]
            if not matching:
                raise UserError("the filter matches no hook point: model.hook_dict lists them all.")
            return matching
        if name not in self.hook_dict:
            raise unknown_name("hook point", name, self.hook_dict)
        reason = self._silent_because(name)
        if reason is not None:
            raise UserError(f"hook point {name!r} cannot fire: {reason}")
        return [name]

    def _silent_because(self, name: str) -> str | None:
        """Why a hook point does not fire at present and what to do about it; None where it does."""
        return None
