"""Published models without positions whose weights transformers' own classes have no place for.

DroPE (Gelberg et al. 2025, arXiv 2512.12167) recalibrates Llamas and Qwens without rotation, some
with one norm of all heads' queries or keys. Head-wise attention scales (Wang et al. 2024, arXiv
2404.12224) are one learned factor on each head's queries. Both come right after a projection: here
the projection does it, and all else is the base family's.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from einops import repeat
from torch import Tensor, nn

from nope_interp.errors import UserError, unknown_name

_DROPE = {"llama_drope": "llama", "qwen2_drope": "qwen2"}
_NORMED = {"nope": "", "qk_norm_nope": "qk", "q_norm_nope": "q", "k_norm_nope": "k"}
_CODELLM = re.compile(r"mcgill-nlp/codellm_1b_(nope|rotary|alibi)")
_HEAD_SCALE = "self_attn.scale_param"
_NORM_HERE = re.compile(r"self_attn\.([qk])_proj\.norm\.")
_NORM_THERE = re.compile(r"self_attn\.[qk]_norm\.weight$")


@dataclass(frozen=True)
class Format:
    """What a checkpoint has beyond its base family.

    Attributes:
        base: the `model_type` of that family.
        normed: whose projections are normed: "q", "k", "qk" or neither.
        scaled: whether each head's queries have a factor.
    """

    base: str
    normed: str = ""
    scaled: bool = False

    @property
    def renamed(self) -> dict[str, str]:
        """Where its tensors belong here, by patterns that transformers takes."""
        names = {rf"self_attn\.{of}_norm\.": f"self_attn.{of}_proj.norm." for of in self.normed}
        if self.scaled:
            names[re.escape(_HEAD_SCALE)] = "self_attn.q_proj.scale"
        return names

    def idle(self, unexpected: Iterable[str]) -> set[str]:
        """Of tensors without a place, the norms that are written and not used.

        DroPE's own code makes both norms wherever it uses one.

        Args:
            unexpected: names of tensors.
        """
        one = len(self.normed) == 1
        return {name for name in unexpected if one and _NORM_THERE.search(name)}


def drope_format(raw: Mapping[str, Any]) -> Format | None:
    """The format of a DroPE checkpoint; None for any other.

    Args:
        raw: the config as its file has it.

    Raises:
        UserError: for a kind of attention that none of them has.
    """
    base = _DROPE.get(raw.get("model_type", ""))
    if base is None:
        return None
    attention = raw.get("attention_type", "nope")
    if attention not in _NORMED:
        raise unknown_name("attention_type of a DroPE model", attention, _NORMED)
    return Format(base, _NORMED[attention])


def has_head_scales(unexpected: set[str]) -> bool:
    """Whether a checkpoint's tensors that its family has no place for are head-wise scales.

    Args:
        unexpected: their names.
    """
    return bool(unexpected) and all(name.endswith(_HEAD_SCALE) for name in unexpected)


def refuse_codellm(name: str, raw: Mapping[str, Any]) -> None:
    """Raise UserError for Kazemnejad et al.'s models, whose architecture no library has.

    Args:
        name: as the user gave it.
        raw: the config as its file has it; empty where it is not read yet.
    """
    if _CODELLM.fullmatch(name.lower()) or "CustomDecoderOnlyT5" in str(raw.get("architectures")):
        raise UserError(
            f"{name!r} is a T5-like decoder that only its authors' code runs, which is not run "
            "here: choose another model, such as starmpcc/NoPE_1.5B_FW_EDU_15T."
        )


def model_class(format: Format) -> Any:
    """The class of the format's family with what the format has beyond it, under the same name.

    Args:
        format: what the checkpoint has beyond its family.
    """
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM

    base = {"llama": LlamaForCausalLM, "qwen2": Qwen2ForCausalLM}[format.base]

    def __init__(self: Any, config: Any) -> None:
        base.__init__(self, config)
        for layer in self.model.layers:
            _extend(layer.self_attn, config, format)

    return type(base.__name__, (base,), {"__init__": __init__, "__module__": __name__})


def check_norms(format: Format, name: str) -> None:
    """Raise UserError where a family has no published format with such norms.

    Args:
        format: which projections are normed.
        name: what the model is called in errors.
    """
    if format.base not in _DROPE.values():
        raise UserError(
            f"{name!r} is of the family {format.base!r}, and only models of "
            f"{' and '.join(_DROPE.values())} get norms of queries and keys: leave the norm out."
        )


def add_norms(model: Any, format: Format) -> None:
    """Give a loaded model's queries and keys the norms of a DroPE format, as they begin: all ones.

    Args:
        model: of the format's family.
        format: which projections are normed.
    """
    for layer in model.model.layers:
        _extend(layer.self_attn, model.config, format)
        for of in format.normed:
            projection = getattr(layer.self_attn, f"{of}_proj")
            projection.norm.to(projection.weight)


def published_form(model: Any) -> tuple[dict[str, Tensor] | None, dict[str, Any]]:
    """A model's tensors by the names of its published format, and what its config says of that.

    Args:
        model: of transformers, perhaps with norms of `add_norms`.

    Returns:
        Tensors, None where they have their own names; fields that differ in the config.
    """
    tensors: dict[str, Tensor] = model.state_dict()
    if not any(_NORM_HERE.search(name) for name in tensors):
        return None, {}
    renamed = {_NORM_HERE.sub(r"self_attn.\1_norm.", name): x for name, x in tensors.items()}
    base = model.config.model_type
    family = next(published for published, own in _DROPE.items() if own == base)
    return renamed, {"model_type": family, "attention_type": "qk_norm_nope"}


def _extend(attention: Any, config: Any, format: Format) -> None:
    for of in format.normed:
        projection = getattr(attention, f"{of}_proj")
        norm = nn.RMSNorm(projection.out_features, config.rms_norm_eps)
        setattr(attention, f"{of}_proj", _NormedProjection(projection, norm))
    if format.scaled:
        attention.q_proj = _ScaledProjection(attention.q_proj, config.num_attention_heads)
    if getattr(config, "softmax_scale", None) is not None:
        attention.scaling = config.softmax_scale


class _Projection(nn.Linear):
    """A linear map with the weights of another."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias


class _NormedProjection(_Projection):
    """Whose output has one norm, over all heads at once."""

    def __init__(self, linear: nn.Linear, norm: nn.Module) -> None:
        super().__init__(linear)
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x))


class _ScaledProjection(_Projection):
    """Whose output is multiplied by one factor a head."""

    def __init__(self, linear: nn.Linear, n_heads: int) -> None:
        super().__init__(linear)
        self.scale = nn.Parameter(torch.ones(n_heads))

    def forward(self, x: Tensor) -> Tensor:
        per_dim = repeat(self.scale, "head -> (head d)", d=self.out_features // len(self.scale))
        return super().forward(x) * per_dim
