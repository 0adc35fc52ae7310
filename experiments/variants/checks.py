"""Mistakes that can be told before anything heavy is loaded, which takes seconds."""

from collections.abc import Callable

from experiments.runs.folder import RunConfig
from nope_interp.devices import check_device_name
from nope_interp.errors import FieldError, UserError, shown
from nope_interp.fields import is_whole
from nope_interp.files import read_text
from nope_interp.pretrained.source import check_source, is_own


def check_files(config: RunConfig, read: Callable[[str], str] = read_text) -> None:
    """Make sure that a config's model, text and rules can be used where they are files.

    Args:
        config: names the files.
        read: reads a text, or remembers that it did.

    Raises:
        UserError: for a file that cannot be used.
    """
    if config.model is not None:
        check_source(config.model)
    if config.text is not None:
        read(config.text)
    if hasattr(config, "check_rules"):
        config.check_rules()


def check_device_for(config: RunConfig, device: str) -> None:
    """Make sure that a config's model can be on a device of that name somewhere.

    Args:
        config: names the model.
        device: a torch device, or "auto".

    Raises:
        UserError: where it can be on none such anywhere.
    """
    check_spread(config, device)
    if device != "auto":
        check_device_name(device)


def check_spread(config: RunConfig, device: str) -> None:
    """Refuse to spread a model of ours over several devices.

    Args:
        config: names the model.
        device: a torch device, or "auto".

    Raises:
        UserError: for "auto", and a model of ours.
    """
    own = config.model is None or is_own(config.model)
    if device == "auto" and own:
        raise UserError("the device 'auto' is for pretrained models: name one, such as cuda.")


def check_shared_out(n: int, n_sequences: int) -> None:
    """Raise UserError where so many shards have not two sequences each.

    Args:
        n: how many shards.
        n_sequences: how many sequences are shared out.
    """
    if n > n_sequences // 2:
        raise UserError(
            f"{shown(n)} shards are too many for {n_sequences} sequences: give at most "
            f"{n_sequences // 2}, so that each has two."
        )


def check_shards(n: int, ray: str | None, *, n_sequences: int, device: str) -> None:
    """Make sure that sequences can be read in so many shards, and on that cluster.

    Args:
        n: how many shards.
        ray: HOST:PORT of a Ray cluster; None for workers here.
        n_sequences: how many sequences can be shared out, as `n_shareable` of a config says.
        device: a torch device, or "auto".

    Raises:
        UserError: where they cannot.
    """
    if not is_whole(n, 1):
        raise FieldError("shards", f"is {shown(n)}: give at least 1, a whole number.")
    check_shared_out(n, n_sequences)
    if n > 1 and device == "auto":
        raise UserError(
            "each shard has a model of its own, but the device 'auto' spreads one over all "
            "devices: name one device, or leave the shards out."
        )
    if ray is not None:
        if n == 1:
            raise UserError("a Ray cluster is for shards: add --shards, or leave --ray out.")
        from experiments.runs.ray_cluster import check_answers

        check_answers(ray)
