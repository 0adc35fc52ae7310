"""One sequence on the page: where probes of each layer put its tokens."""

import numpy as np

from experiments.report import lookup
from experiments.report.data import ReportData
from experiments.report.figures import Chart


def sequence_chart(data: ReportData) -> Chart:
    """Predicted against true position of the example's tokens, one line per layer."""
    tokens = list(data.example.get("tokens", ()))
    positions = list(range(len(tokens)))
    # What a probe answers that learned nothing but which positions there are in the whole run.
    fitted = [array for key, array in data.arrays.items() if key.endswith("/linear/positions")]
    middle = [float(np.mean(fitted[0]))] * len(tokens) if fitted else []
    panels = []
    predictions = data.example.get("predictions", {})
    for variant in lookup.variants_of(data):
        layers = predictions.get(variant) or {}
        series = [lookup.make_series("fit", None, positions, positions, "predicted = true")]
        if middle:
            series.insert(0, lookup.make_series("chance", None, positions, middle, "middle"))
        for index, (label, predicted) in enumerate(layers.items()):
            line = lookup.make_series("depth", variant, positions, predicted, str(label))
            shade = round(index / max(1, len(layers) - 1), 3)
            series.append(line | {"shade": shade, "text": tokens})
        if layers:
            panels.append(lookup.make_panel(variant, variant, "predicted position", series))
    return Chart(
        id="sequence-positions",
        title="Predicted against true position",
        caption="One line a layer, pale is early; the thin line is exact, the dashed one chance.",
        reading="The dashed line is the guess that knows nothing: the middle of the sequence.",
        x="true position",
        views={"": {"panels": panels}} if panels else {},
        share_y=True,
        switched=False,
    )
