"""Training steps as CUDA graphs."""
