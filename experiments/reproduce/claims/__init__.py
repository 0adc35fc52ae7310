"""What each paper says, one file for each, and the tests that decide. Imports nothing heavy."""
