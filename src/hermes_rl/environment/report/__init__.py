"""A file of groups as one page of HTML that needs no network and runs no script."""
