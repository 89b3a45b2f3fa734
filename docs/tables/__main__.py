"""Writes or checks all tables; see the package."""

import sys

from .pages import main

sys.exit(main())
