"""Places in the residual stream and their hook names. Imports nothing heavy."""

from nope_interp.errors import unknown_name

RESIDUAL_SITES = ("resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")


def check_site(site: str) -> str:
    """`site` itself; raises UserError, with the nearest right name, where there is no such site."""
    if site not in RESIDUAL_SITES:
        raise unknown_name("site", site, RESIDUAL_SITES)
    return site


def hook_name(layer: int, site: str) -> str:
    """The classic name of a residual-stream site.

    Example:
        >>> hook_name(3, "resid_post")
        'blocks.3.hook_resid_post'
    """
    return f"blocks.{layer}.hook_{check_site(site)}"
