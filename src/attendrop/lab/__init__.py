"""The workbench: data, whole runs, evaluation, studies, reports and the command line, built on the library below it.

Nothing outside of this package imports it, but for the lazy public names of `attendrop` and `python -m attendrop`.
"""
