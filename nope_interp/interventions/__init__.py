"""Changing the activations of a running model at named sites."""
