"""Tests of acceptlab.store."""
