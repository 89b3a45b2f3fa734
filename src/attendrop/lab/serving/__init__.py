"""A finished run as a small HTTP service (`attendrop serve`)."""
