"""What the tests share: tiny models, data, settings, slow reference versions. No test file imports another one."""
