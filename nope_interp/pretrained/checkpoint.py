"""A checkpoint's config and weights as a transformers model; code that it brings is not run."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import torch

from nope_interp.errors import UserError
from nope_interp.memory import check_fits
from nope_interp.positions.families import WITHOUT
from nope_interp.pretrained.declared import (
    check_pairs,
    check_rotation,
    is_known,
    without_positions,
)
from nope_interp.pretrained.published import (
    Format,
    drope_format,
    has_head_scales,
    model_class,
    refuse_codellm,
)
from nope_interp.pretrained.switched_off import switch_off
from nope_interp.pretrained.text_part import RENAMED, config_of_text, mark, of_text, text_part

# What transformers asks before it has weights converted; one load at a time says it.
_NOT_CONVERTED = "DISABLE_SAFETENSORS_CONVERSION"
_ENVIRONMENT = RLock()
# Causal masks that older versions of transformers saved with the weights of these families.
_SAVED_MASKS = re.compile(r"attn\.(attention\.)?(bias|masked_bias|causal_mask)$")
_WITH_MASKS = ("gpt2", "gpt_neo", "gptj", "codegen")


def read_checkpoint(
    name: str, where: Mapping[str, str], positions: str, *, device: str = "cpu", **how: Any
) -> tuple[Any, tuple[str, ...]]:
    """The model that the files hold, with the positions that it has.

    Args:
        name: as the user gave it.
        where: which files, as `from_pretrained` takes them.
        positions: as `load_pretrained` takes them.
        device: where it will go, if it is not spread over several.
        how: further options of `from_pretrained`: the dtype and the device map.

    Returns:
        The model, and sentences about how it was read.

    Raises:
        UserError: where the files are not those of one model that can be read, and for positions
            that it cannot have.
    """
    from transformers import AutoConfig, PreTrainedConfig

    refuse_codellm(name, {})
    raw, _ = PreTrainedConfig.get_config_dict(**where)
    refuse_codellm(name, raw)
    drope, text = drope_format(raw), text_part(raw)
    said = raw if text is None else text
    as_read = said if drope is None else {**raw, "model_type": drope.base}
    check_rotation(name, as_read)
    check_pairs(name, as_read)
    if drope is None:
        config = AutoConfig.from_pretrained(**where, trust_remote_code=False)
        config = config if text is None else config_of_text(config)
    else:
        own = {key: value for key, value in raw.items() if key not in ("model_type", "auto_map")}
        config = AutoConfig.for_model(drope.base, **own)
    none = without_positions(name, said, config, positions, published=drope is not None)
    if not none and getattr(config, WITHOUT, False):
        setattr(config, WITHOUT, False)
    if config.model_type == "t5" and how["dtype"] is torch.float16:
        raise UserError("T5 keeps some weights in float32 beside float16: give bfloat16.")
    if how["device_map"] is None and not Path(where["pretrained_model_name_or_path"]).exists():
        _check_hubs(name, config, device, how["dtype"])
    how = how if text is None else {**how, "key_mapping": RENAMED}
    model, unexpected = _weights(name, where, config, drope, how)
    if drope is None and config.model_type == "llama" and has_head_scales(unexpected):
        model, unexpected = _weights(name, where, config, Format("llama", scaled=True), how)
    if config.model_type in _WITH_MASKS:
        unexpected = {tensor for tensor in unexpected if not _SAVED_MASKS.search(tensor)}
    if text is not None:
        unexpected = of_text(model, unexpected)
        mark(model)
    idle = set() if drope is None else drope.idle(unexpected)
    _refuse_unexpected(name, unexpected - idle, published=drope is not None or is_known(name))
    notes = []
    if raw.get("auto_map"):
        notes.append(
            "The model's folder names code of its own (auto_map), which was not run: its weights "
            f"are read as a {type(model).__name__} of transformers."
        )
    if text is not None:
        notes.append("The model also reads images: only the part that reads text was loaded.")
    if idle:
        notes.append(
            f"The checkpoint has {len(idle)} norms of queries or keys, such as {min(idle)}, that "
            "its attention_type does not use."
        )
    if none:
        switch_off(model)
        notes.append(
            f"The model has no positional encoding: what transformers gives a {config.model_type} "
            "model is switched off."
        )
    return model, tuple(notes)


def _check_hubs(name: str, config: Any, device: str, dtype: torch.dtype) -> None:
    """Refuse a model that memory cannot hold, before it is downloaded; no weight of it is made."""
    with torch.device("meta"):
        kind = _auto_class(config, name)
        model = kind.from_config(config, dtype=dtype, trust_remote_code=False)
    needed = sum(weight.nbytes for weight in model.parameters())
    check_fits(name, needed, device, str(dtype).removeprefix("torch."))


def _weights(
    name: str,
    where: Mapping[str, str],
    config: Any,
    format: Format | None,
    how: Mapping[str, Any],
) -> tuple[Any, set[str]]:
    """The model with its weights, and the names of tensors that it has no place for."""
    loader = _auto_class(config, name)
    if format is not None:
        loader, how = model_class(format), {**how, "key_mapping": format.renamed}
    with _nothing_converted(name):
        model, loading = loader.from_pretrained(
            **where,
            **how,
            config=config,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
        )
    other = sorted(str(key) for key, *_ in loading["mismatched_keys"])
    if other:
        raise UserError(
            f"the model {name!r} has {len(other)} weights of other sizes than its config says, "
            f"such as {other[0]}: give the checkpoint that its config describes."
        )
    # transformers would draw them at random and go on.
    missing = sorted(loading["missing_keys"])
    if missing:
        raise UserError(
            f"the model {name!r} lacks {len(missing)} of its weights, such as {missing[0]}: give a "
            "complete checkpoint."
        )
    return model, set(loading["unexpected_keys"])


@contextmanager
def _nothing_converted(name: str) -> Iterator[None]:
    """Refuse pickled weights of a hub's model.

    transformers would have a service unpickle them, in a pull request that everybody sees, and read
    what that makes.
    """
    with _ENVIRONMENT:
        before = os.environ.get(_NOT_CONVERTED)
        os.environ[_NOT_CONVERTED] = "1"
        try:
            yield
        except OSError as error:
            if "cannot be loaded with `safetensors`" not in str(error):
                raise
            raise UserError(
                f"no weights in safetensors could be had of {name!r}, and pickled ones are not "
                "read here: check the network. Where it has none, load it with transformers if you "
                "trust it, save_pretrained() it, and give that folder."
            ) from error
        finally:
            if before is None:
                del os.environ[_NOT_CONVERTED]
            else:
                os.environ[_NOT_CONVERTED] = before


def _refuse_unexpected(name: str, unexpected: Iterable[str], *, published: bool) -> None:
    """Raise UserError for tensors that transformers would leave out without a word.

    In attention, or as a table of positions, they change what positions do; a published model has
    none anywhere.
    """
    telling = ("attn", "attention", "wpe")
    found = sorted(key for key in unexpected if published or any(part in key for part in telling))
    if found:
        raise UserError(
            f"the model {name!r} has {len(found)} tensors that its config has no place for, such "
            f"as {found[0]}: give the checkpoint that its config describes."
        )


def _auto_class(config: Any, name: str) -> Any:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

    if config.model_type == "t5":
        return AutoModelForSeq2SeqLM
    if config.is_encoder_decoder:
        raise UserError(
            f"{name!r} is an encoder-decoder of type {config.model_type!r}: of these only T5's "
            "decoder is supported, choose a T5 or a decoder-only model."
        )
    return AutoModelForCausalLM
