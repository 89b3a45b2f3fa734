"""How a model is changed for one pass: the plan, the places that read it, the probe, attribution."""
