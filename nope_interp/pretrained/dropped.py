"""A rotary model whose positions are dropped (DroPE: Gelberg et al. 2025, arXiv 2512.12167).

The weights stay, and every angle becomes 0. What is saved is a folder that says so, in the form
that `load_pretrained` reads.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from nope_interp.errors import UserError
from nope_interp.files import (
    cannot_write,
    honour_umask,
    make_folder,
    part_of,
    read_json,
    write_json,
)
from nope_interp.positions.families import WITHOUT, family_encoding
from nope_interp.pretrained.published import Format, add_norms, check_norms, published_form
from nope_interp.pretrained.quiet import quiet
from nope_interp.pretrained.switched_off import switch_off
from nope_interp.pretrained.text_part import is_text_part


def check_droppable(model: Any, name: str, *, qk_norm: bool = False) -> None:
    """Look whether a model has rotary positions, and a form without them.

    Args:
        model: of transformers.
        name: what it is called in errors.
        qk_norm: as `drop_positions` takes it.

    Raises:
        UserError: for a model that has no rotary positions, and for norms that its family's
            published format does not have.
    """
    if getattr(model.config, WITHOUT, False) or family_encoding(model.config) != "rotary":
        raise UserError(
            f"{name!r} has no rotary positions to drop: give a model that rotates queries and keys."
        )
    if qk_norm:
        check_norms(Format(model.config.model_type, "qk"), name)


def drop_positions(model: Any, *, qk_norm: bool = False) -> None:
    """Leave a rotary model without its positions.

    Args:
        model: of transformers, on its device; `check_droppable` has nothing against it.
        qk_norm: whether queries and keys get a norm each, over all heads at once.
    """
    if qk_norm:
        add_norms(model, Format(model.config.model_type, "qk"))
    switch_off(model)


def save_folder(model: Any, tokenizer: Any, folder: Path) -> Path:
    """Write a Hugging Face folder with safetensors weights, which is whole or not there.

    Args:
        model: of transformers; its config says whether its positions were dropped.
        tokenizer: its own; None where it has none.
        folder: the folder to make.

    Returns:
        `folder`.

    Raises:
        UserError: where it cannot be written.
    """
    make_folder(folder.parent)
    part = make_folder(part_of(folder))
    try:
        tensors, told = published_form(model)
        with quiet():
            names = not is_text_part(model)
            model.save_pretrained(part, state_dict=tensors, save_original_format=names)
        write_json(part / "config.json", {**read_json(part / "config.json"), **told})
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        for made in list(part.iterdir()):
            honour_umask(made)
        os.replace(part, folder)
    except (OSError, SafetensorError) as error:
        raise cannot_write(folder, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder
