"""Which environments there are, read from their files' text and never by running them."""
