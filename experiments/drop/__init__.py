"""Dropping a model's positions: what it costs, what recalibration brings back, how far it reads."""
