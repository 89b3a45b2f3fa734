"""The attention positions that AD-DROP or a trained generator drops, by distance, kind of token, and tag.

measure.py      the shares of any model
tokens.py       the kinds of tokens
run_folder.py   the shares of a finished run
figure.py       the figure
"""
