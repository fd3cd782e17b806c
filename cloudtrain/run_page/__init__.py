"""A run, or two side by side, as one page of HTML: what happened, its curves, how busy its machines were, its cost."""
