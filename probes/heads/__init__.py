"""What attention heads look at: detectors, labels, rotary frequencies."""
