"""Charts as SVG in a page of HTML that needs nothing from elsewhere. Pure text, no library."""
