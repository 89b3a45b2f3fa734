"""Counter-based draws on a GPU. `attendrop.random` is the reference and the one who calls."""
