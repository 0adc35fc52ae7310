"""Where a page can be served: on this machine, at which ports. Imports nothing heavy."""

from numbers import Integral

from nope_interp.errors import UserError, shown

LOCAL = "127.0.0.1"


def check_port(port: int) -> None:
    """Raise UserError for what is no port of any machine; 0 stands for a free one."""
    if not isinstance(port, Integral) or not 0 <= port < 2**16:
        raise UserError(f"the port is {shown(port)}: give one from 1 to 65535, or leave it out.")
