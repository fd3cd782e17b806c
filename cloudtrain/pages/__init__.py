"""Charts as SVG in standalone HTML pages. Pure text, no library."""
