"""The source of a job: which files are sent, the digest that names them, the .tar.gz that holds
them.
"""
