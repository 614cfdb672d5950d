"""Agreement between the ranks of a process group, and a rank's part of a distributed tensor."""
