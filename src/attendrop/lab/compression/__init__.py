"""Compresses the model of a finished run: `attendrop compress`.

    compress_run("runs/reviews", target=2.0)

does what `attendrop compress runs/reviews --target 2x` does.
"""
