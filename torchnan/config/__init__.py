"""Options and settings: their tables, how text is read, and text that is safe to show."""
