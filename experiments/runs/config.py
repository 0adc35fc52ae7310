"""What a run is asked to do, whatever its experiment."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class RunConfig(Protocol):
    """What a run folder needs to know of a config."""

    @property
    def experiment(self) -> str:
        """The name of the experiment."""

    @property
    def model(self) -> str | None:
        """A hub name or a path; None trains one."""

    @property
    def text(self) -> str | None:
        """A file to read, if any."""

    def run_name(self) -> str:
        """The readable half of the run folder's name."""

    def command(self) -> str:
        """The command line that runs this again."""

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-able values."""
