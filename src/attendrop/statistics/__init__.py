"""Statistics of paired runs. Arrays in, numbers out: nothing here knows about models, files or methods."""
