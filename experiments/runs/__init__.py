"""Run folders, cells that are computed once, and work spread over processes or Ray."""
