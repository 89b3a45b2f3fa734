"""Exports the model of a finished run: `attendrop export`.

    export_run("runs/reviews", int8=True)

does what `attendrop export runs/reviews --int8` does.
"""
