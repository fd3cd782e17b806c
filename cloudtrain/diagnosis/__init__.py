"""Why a run failed: values computed from its events, its log and its platform's reason, by a table of rules."""
