"""Figures of training runs and of what a method does, and the model card of a run."""
