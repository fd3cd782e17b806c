"""A run or a sweep as one file of HTML, from the templates beside it."""
