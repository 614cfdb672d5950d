"""A diagnosis as others want it: on a terminal, as JSON, as a page, as a document to be filled in."""
