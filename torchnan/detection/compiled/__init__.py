"""Detection inside ``torch.compile``: a region that returns NaN or Inf is replayed on the graph that Dynamo traced.

A compiled region runs as it is. Its results are checked at its border; only when one is non-finite is the graph run
again, node by node and on the same inputs, in frames that carry the user's file and line, so that the operation which
made the value is found as in a program that is not compiled.
"""
