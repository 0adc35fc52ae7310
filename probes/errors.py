"""The one exception that probes raise for what a caller can put right."""


class ProbeError(ValueError):
    """Activations, positions or parameters that a probe cannot work with; it says the remedy."""
