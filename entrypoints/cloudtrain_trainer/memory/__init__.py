"""How much memory a rank will need, found before it is paid for: a rank is rehearsed on tensors
without values.
"""
