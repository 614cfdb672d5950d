"""Detection inside ``torch.compile``: a region that returns NaN or Inf is replayed on the graph that Dynamo traced.

A compiled region runs unchanged. Its results are checked at its border. Only when one is non-finite does the graph run
again, node by node and on the same inputs, in frames that carry the user's file and line, so that the operation which
made the value is found as in an uncompiled program.
"""
