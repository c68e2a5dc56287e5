"""Scenarios of real client packages: each module yields functions that send requests to `url`."""
