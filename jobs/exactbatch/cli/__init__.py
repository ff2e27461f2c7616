"""The exactbatch command."""
