"""What probes say of what a caller can put right: an exception, and a warning."""


class ProbeError(ValueError):
    """Activations, positions or parameters that a probe cannot work with; it says the remedy."""


class ProbeWarning(UserWarning):
    """Activations that a probe can work with, and whose numbers may mislead; it says the remedy."""
