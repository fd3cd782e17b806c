"""Why a run failed, and why it is slow: values computed from its events, its log and its platform's
reason.
"""
