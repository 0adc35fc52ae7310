"""What the probes compute, as estimators of scikit-learn's, and any of its regressors as a probe.

All else of the package does without scikit-learn, which takes long to import.
"""
