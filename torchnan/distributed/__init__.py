"""Agreement between the ranks of a process group, and what a rank holds of a distributed tensor."""
