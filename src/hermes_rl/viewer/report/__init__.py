"""Reports: the viewer's pages of a run, an evaluation or a file of groups as one self-contained HTML file."""
