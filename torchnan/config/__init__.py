"""Options and settings: their tables, parsing, and text that is safe to show."""
