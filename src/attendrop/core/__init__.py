"""One regularised training step: the base class of the methods, the step, the engine."""
