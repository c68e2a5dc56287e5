"""Engine cores on other machines, behind one front end."""
