"""The viewer's pages of a run, an evaluation or a file of groups as one HTML file, to send to somebody."""
