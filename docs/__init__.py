"""The pages of the site, and the scripts that generate parts of them."""
