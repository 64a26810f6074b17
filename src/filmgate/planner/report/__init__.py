"""An answer as text for a terminal, as a decision record, and as a page."""
