"""Where a page can be served: on this machine, at which ports. Imports nothing heavy."""

from nope_interp.errors import UserError, shown
from nope_interp.fields import is_whole

LOCAL = "127.0.0.1"


def check_port(port: int) -> None:
    """Raise UserError for what is no port of any machine; 0 stands for a free one."""
    if not is_whole(port, 0, 2**16 - 1):
        raise UserError(f"the port is {shown(port)}: give one from 1 to 65535, or leave it out.")
