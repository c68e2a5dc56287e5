"""The router in front of servers on other machines: `quire route`."""
