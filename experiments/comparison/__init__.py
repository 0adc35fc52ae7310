"""The main job: which hypothesis explains how a model knows where it is."""
