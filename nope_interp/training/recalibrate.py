"""Go on training a language model of transformers on text, as after its positions were dropped."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from nope_interp.errors import UserError
from nope_interp.shapes import PerSequence, Sequences, Tokens
from nope_interp.training.config import TrainingConfig
from nope_interp.training.loop import AtStep, optimize, step_seed

Text = Int[Tensor, " token"]


def check_parts(model: nn.Module, parts: Sequence[str] | None) -> None:
    """Make sure that each of `parts` stands in a parameter's name.

    Args:
        model: of transformers.
        parts: of names, such as "self_attn"; None for all parameters.

    Raises:
        UserError: for a part that no parameter's name holds.
    """
    names = [name for name, _ in model.named_parameters()]
    for part in parts or ():
        if not any(part in name for name in names):
            raise UserError(
                f"no parameter's name holds {part!r}: give parts of names such as {names[-2]}."
            )


def choose_trained(model: nn.Module, parts: Sequence[str] | None) -> None:
    """Let those parameters require a gradient whose names hold one of `parts`.

    Args:
        model: of transformers.
        parts: as `check_parts` takes them.

    Raises:
        UserError: as `check_parts` does.
    """
    check_parts(model, parts)
    model.requires_grad_(False)
    for parameter in chosen(model, parts):
        parameter.requires_grad_(True)


def chosen(model: nn.Module, parts: Sequence[str] | None) -> list[nn.Parameter]:
    """The parameters whose names hold one of `parts`; all for None.

    Args:
        model: of transformers.
        parts: as `check_parts` takes them.

    Returns:
        Each once.
    """
    return [
        parameter
        for name, parameter in model.named_parameters()
        if parts is None or any(part in name for part in parts)
    ]


def windows(text: Text, training: TrainingConfig, begin_id: int | None, step: int) -> Tokens:
    """The sequences of a step: windows of the text at random, behind a begin token if there is one.

    Args:
        text: what is trained on.
        training: has the sizes and the seed.
        begin_id: None where the model has no begin token.
        step: of the optimiser, from 0.
    """
    generator = torch.Generator().manual_seed(step_seed(training, step))
    length = training.seq_len - (begin_id is not None)
    starts = torch.randint(len(text) - length + 1, (training.batch_size,), generator=generator)
    tokens = text[rearrange(starts, "batch -> batch 1") + torch.arange(length)]
    return tokens if begin_id is None else F.pad(tokens, (1, 0), value=begin_id)


def recalibrate(
    model: Any,
    training: TrainingConfig,
    text: Text,
    begin_id: int | None,
    *,
    parts: Sequence[str] | None = None,
    header: dict[str, Any],
    title: str,
    state_path: Path | None = None,
    watch: AtStep | None = None,
    show_progress: bool = True,
) -> None:
    """Train a model on the next tokens of a text; it ends in evaluation mode.

    Args:
        model: of transformers, in single precision.
        training: length, speed and seed of the training.
        text: tokens in reading order.
        begin_id: what sequences begin with; None for nothing.
        parts: of the names of parameters that are trained; None trains all.
        header: tells this training from others, beside `training`.
        title: what the progress bar is called.
        state_path: file that keeps the training state, so that a stopped training goes on from
            there; None keeps nothing.
        watch: called at each of `watched_steps`, as `optimize` says; None calls nothing.
        show_progress: draw a bar with the loss on standard error.

    Raises:
        UserError: as `optimize` and `choose_trained` do.
    """
    choose_trained(model, parts)
    device = next(model.parameters()).device

    def loss_at(step: int) -> Float[Tensor, ""]:
        tokens = windows(text, training, begin_id, step).to(device)
        logits = model(tokens[:, :-1], use_cache=False).logits.float()
        return F.cross_entropy(logits.flatten(0, 1), asked_of(model, tokens[:, 1:]).flatten())

    optimize(
        model,
        training,
        loss_at,
        header=header,
        title=title,
        state_path=state_path,
        watch=watch,
        show_progress=show_progress,
    )
    model.requires_grad_(True)


@torch.no_grad()
def last_log_probabilities(
    model: Any, tokens: Sequences, n_last: int, *, batch_size: int
) -> Float[Tensor, "sequence n_last d_out"]:
    """Logarithms of the probabilities of each of the last tokens' places, given all before it.

    Args:
        model: of transformers, in evaluation mode.
        tokens: `[sequence pos]`, longer than `n_last`.
        n_last: how many tokens at the end are asked for.
        batch_size: sequences in a forward pass.

    Returns:
        On the CPU; of the tokens of `only_tokens` where the model is restricted to some.
    """
    device = next(model.parameters()).device
    # Logits of all positions of a long sequence can be larger than the model.
    few = "logits_to_keep" in signature(model.forward).parameters
    found = []
    for batch in tokens[:, :-1].split(batch_size):
        only = {"logits_to_keep": n_last} if few else {}
        logits = model(batch.to(device), use_cache=False, **only).logits[:, -n_last:]
        found.append(logits.float().log_softmax(dim=-1).cpu())
    return torch.cat(found)


def last_losses(model: Any, tokens: Sequences, n_last: int, *, batch_size: int) -> PerSequence:
    """Mean cross-entropy of the last tokens of each sequence, in nats per token.

    Args:
        model: of transformers, in evaluation mode.
        tokens: `[sequence pos]`, longer than `n_last`.
        n_last: how many tokens at the end are scored.
        batch_size: sequences in a forward pass.

    Returns:
        `[sequence]`, on the CPU.
    """
    losses = []
    for batch in tokens.split(batch_size):
        found = last_log_probabilities(model, batch, n_last, batch_size=batch_size)
        wanted = asked_of(model, batch[:, -n_last:])
        losses.append(-found.gather(-1, rearrange(wanted, "b n -> b n 1"))[..., 0].mean(dim=1))
    return torch.cat(losses)


@contextmanager
def only_tokens(model: Any, ids: Text | None) -> Iterator[None]:
    """While it is open, a model has logits of these tokens alone; its losses are over them.

    Args:
        model: of transformers.
        ids: sorted, each once; None leaves the model as it is.

    Yields:
        Nothing.
    """
    if ids is None:
        yield
        return
    head = model.get_output_embeddings()
    model.set_output_embeddings(_SomeRows(head, ids.to(head.weight.device)))
    try:
        yield
    finally:
        model.set_output_embeddings(head)


def asked_of(model: Any, tokens: Tokens) -> Tokens:
    """Where a model's logits have these tokens: their ids, or their places among `only_tokens`.

    Args:
        model: of transformers.
        tokens: all of them among these.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, _SomeRows):
        return tokens
    return torch.searchsorted(head.ids, tokens.to(head.ids.device).contiguous()).to(tokens.device)


class _SomeRows(nn.Module):
    """An unembedding of some tokens, with the weights of the whole one, which may be tied."""

    def __init__(self, head: nn.Linear, ids: Text) -> None:
        super().__init__()
        self.head, self.ids = head, ids

    @property
    def weight(self) -> Tensor:
        """The rows of the whole one's weights."""
        return self.head.weight[self.ids]

    def forward(self, x: Tensor) -> Tensor:
        # accelerate would move it in a hook of the whole head, which is not called here.
        x, bias = x.to(self.head.weight.device), self.head.bias
        return F.linear(x, self.weight, None if bias is None else bias[self.ids])
