"""Changes to a model for one pass: the plan, the seams that apply it, the probe, attribution."""
