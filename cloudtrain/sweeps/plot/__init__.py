"""A sweep as one page of charts: HTML with SVG in it, which needs nothing from elsewhere. Pure
text, no library.
"""
