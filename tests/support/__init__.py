"""Parts the tests stand on that are not tests themselves."""
