"""A run, two side by side, or a scaling curve, as one page of HTML."""
